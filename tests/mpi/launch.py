# SPDX-License-Identifier: Apache-2.0
"""Starts the command under mpirun, looks at its ranks, and at what a run leaves behind."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
from script_checks import DATA, TINY, check, finish  # noqa: E402, F401

SKIPPED = 77
SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def in_shared_memory():
    return {p.name for p in Path("/dev/shm").iterdir()}


def abandoned(names):
    """Those of /dev/shm that no process has mapped: others may run under MPI meanwhile."""
    used = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            used |= {line.rsplit("/", 1)[1] for line in maps.read_text().split("\n") if "/dev/shm/" in line}
        except OSError:
            continue
    return names - used


class Run:
    """mpirun, with its own folder for what it keeps while it runs. `parts`: (number of ranks, command line).

    The end of mpirun has two faults (Open MPI 4.1 with PMIx 4.2), which a program of MPI_Init alone meets too: when a
    process is killed as it makes itself known, PMIx_server_finalize waits for a lock for good; when one is lost in
    MPI_Init, it may read at null. The ranks have ended then, and only files of the launcher stay: `launcher_fails`.
    """

    def __init__(self, parts, options=(), preexec=None, environment=None):
        self.folder = tempfile.mkdtemp(prefix="shardplan_mpi_")
        self.shared_before = in_shared_memory()
        line = ["mpirun", *options]
        for i, (ranks, command) in enumerate(parts):
            line += ([":"] if i else []) + ["-n", str(ranks), *command]
        self.out, self.err = (tempfile.TemporaryFile() for _ in range(2))
        self.begin = time.monotonic()
        self.process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err,
                                        env={**os.environ, **SETTINGS, **(environment or {}), "TMPDIR": self.folder},
                                        preexec_fn=preexec, start_new_session=True)

    def ranks(self):
        """{rank: process id} of the processes that are there now, the launcher alive or not."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                    continue
                words = (entry / "environ").read_bytes().split(b"\0")
                if f"TMPDIR={self.folder}".encode() not in words:
                    continue
                for word in words:
                    if word.startswith(b"OMPI_COMM_WORLD_RANK="):
                        found[int(word.split(b"=")[1])] = int(entry.name)
            except (OSError, IndexError):
                continue
        return found

    def wait_for_ranks(self, count, patience=30):
        end = time.monotonic() + patience
        while time.monotonic() < end and self.process.poll() is None:
            if len(self.ranks()) == count:
                return self.ranks()
            time.sleep(0.01)
        return self.ranks()

    def wait(self, limit):
        """Within so many seconds, or it is killed, and that is a fault. Whatever was left behind is one too."""
        self.hung = False
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.hung = True
            ranks = self.ranks()
            os.killpg(self.process.pid, signal.SIGKILL)
            for pid in ranks.values():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.process.wait()
        self.seconds = time.monotonic() - self.begin
        self.status = self.process.returncode
        self.out.seek(0)
        self.err.seek(0)
        self.text = self.out.read().decode()
        self.messages = self.err.read().decode()
        self.launcher_fails = (self.hung and "PMIX ERROR: UNREACHABLE" in self.messages
                               or self.status == -signal.SIGSEGV and "PMIx_server_finalize" in self.messages)
        self.said = [line for line in self.messages.split("\n") if line.startswith("shardplan: ")]
        return self

    def leftovers(self):
        """What is still there a moment later: processes, shared memory, files of the launcher."""
        end = time.monotonic() + 5
        while True:
            left = [f"process {p}" for p in self.ranks().values()]
            left += [f"/dev/shm: {n}" for n in abandoned(in_shared_memory() - self.shared_before)]
            if not self.launcher_fails:
                left += [str(p) for p in Path(self.folder).rglob("*") if not p.is_dir()]
            if not left or time.monotonic() > end:
                break
            time.sleep(0.1)
        shutil.rmtree(self.folder, ignore_errors=True)
        return left


def mpirun(parts, limit=60, **how):
    """Runs to the end; whatever happens, nothing may hang or stay behind."""
    run = Run(parts, **how).wait(limit)
    name = " : ".join(" ".join(command[1:]) for _, command in parts)
    check(not run.hung or run.launcher_fails, f"{name}: hangs: {run.messages}")
    left = run.leftovers()
    check(not left, f"{name}: leaves {left}")
    return run
