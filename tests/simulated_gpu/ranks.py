# SPDX-License-Identifier: Apache-2.0
"""Starts a program once per rank, as torchrun would, on one simulated GPU that all share or with one each."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
from script_checks import DATA, TINY, check, finish  # noqa: E402, F401

PLACE = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SHARDPLAN_MASTER_PORT", "NCCL_HOSTID"]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def in_shared_memory():
    return {p.name for p in Path("/dev/shm").glob("shardplan-simulated-nccl-*")}


class Run:
    def __init__(self, n, command, seed=1, gpus=1, preset=None):
        clean = {k: v for k, v in os.environ.items() if k not in PLACE}
        common = {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
                  "OPENBLAS_NUM_THREADS": "1", "SHARDPLAN_SIMULATED_SEED": str(seed),
                  "SHARDPLAN_SIMULATED_GPUS": str(gpus), "SHARDPLAN_SHARE_GPU": "1" if gpus < n else "0"}
        self.begin = time.monotonic()
        self.files = [(tempfile.TemporaryFile(), tempfile.TemporaryFile()) for _ in range(n)]
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                             env={**clean, **common, **(preset or {}), "RANK": str(r), "LOCAL_RANK": str(r)})
            for r, (out, err) in enumerate(self.files)]
        self.name = " ".join(command[1:] or command)

    def wait(self, limit=60):
        """To the end of all ranks; one that hangs is a fault. `statuses`, `text` of rank 0, `messages` of all."""
        for r, p in enumerate(self.processes):
            try:
                p.wait(max(0.1, self.begin + limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                check(False, f"{self.name}: rank {r} hangs")
                p.send_signal(signal.SIGKILL)
                p.wait()
        self.seconds = time.monotonic() - self.begin
        self.statuses = [p.returncode for p in self.processes]
        for pair in self.files:
            for f in pair:
                f.seek(0)
        read = [(out.read().decode(), err.read().decode()) for out, err in self.files]
        self.text = "".join(out for out, _ in read)
        self.messages = "".join(err for _, err in read)
        check("simulated GPU:" not in self.messages, f"{self.name}: misuse: {self.messages}")
        return self


def expect(run, status, *words):
    """All ranks end with the status, and say these words."""
    check(set(run.statuses) == {status}, f"{run.name}: {run.statuses}, not {status}: {run.messages}")
    for word in words:
        check(word in run.text + run.messages, f"{run.name}: does not say '{word}': {run.text} {run.messages}")
