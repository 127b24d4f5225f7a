# SPDX-License-Identifier: Apache-2.0
"""Two hosts, each a network namespace of its own with its own name, joined by one link: a plan is verified over both,
then the link is cut amid the work. Ends with status 77 where namespaces are not allowed. Usage: hosts.py SHARDPLAN"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from launch import SETTINGS, SKIPPED, TINY, check, finish

COMMAND = sys.argv[1]
TIMEOUT = 3
ID = f"{os.getpid() % 100000}"
HOSTS = {f"sp{ID}a": "10.231.77.1", f"sp{ID}b": "10.231.77.2"}
A, B = HOSTS


def ip(*arguments, good=True):
    return subprocess.run(["ip", *arguments], check=good, capture_output=True, text=True)


def processes(mark):
    """{process id: command line} of all that have the mark in it."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
            if entry.name.isdigit() and mark in words and int(entry.name) != os.getpid():
                found[int(entry.name)] = words
        except (OSError, UnicodeDecodeError):
            continue
    return found


def make_hosts():
    for host in HOSTS:
        ip("netns", "add", host)
    ip("link", "add", f"v{A}", "netns", A, "type", "veth", "peer", "name", f"v{B}", "netns", B)
    for host, address in HOSTS.items():
        ip("-n", host, "address", "add", f"{address}/24", "dev", f"v{host}")
        for device in ("lo", f"v{host}"):
            ip("-n", host, "link", "set", device, "up")


def on_host(host, *command):
    """In the host's network, and under its name."""
    return ["ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c", f'hostname {host} && exec "$@"', "sh", *command]


def launch(folder, *arguments):
    agent = folder / "agent"
    hosts = "".join(f"  {address}|{host}) host={host};;\n" for host, address in HOSTS.items())
    agent.write_text(f"#!/bin/sh\ncase $1 in\n{hosts}esac\nshift\n"
                     'exec ip netns exec "$host" unshare --uts sh -c "hostname $host && $*"\n')
    agent.chmod(0o755)
    hostfile = folder / "hosts"
    hostfile.write_text("".join(f"{address} slots=2\n" for address in HOSTS.values()))
    line = ["mpirun", "-n", "4", "--hostfile", str(hostfile), "--map-by", "slot", "--mca", "plm_rsh_agent", str(agent)]
    for name, value in {"btl": "tcp,self", "btl_tcp_if_include": "10.231.77.0/24", "oob_tcp_if_include": "10.231.77.0/24",
                        "oob_tcp_keepalive_time": "1", "oob_tcp_keepalive_intvl": "1", "oob_tcp_keepalive_probes": "2",
                        "orte_keep_fqdn_hostnames": "1"}.items():
        line += ["--mca", name, value]
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        line += ["-x", name]
    with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
        return subprocess.Popen(on_host(A, *line, COMMAND, *arguments), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                env={**os.environ, **SETTINGS, "TMPDIR": str(folder)}, start_new_session=True)


def main(folder):
    check_plan = ["verify", "--engine", "mpi", "--checkpoint", TINY, "--plan", "pp=2,cp=2/ring", "--gradients",
                  "--ledger"]
    run = launch(folder, *check_plan)
    run.wait(60)
    out, err = ((folder / name).read_text() for name in ("out", "err"))
    check(run.returncode == 0 and "equal: 4 ranks" in out, f"on two hosts: {run.returncode}: {out} {err}")

    seed = str(1000000 + int(ID))  # marks our processes
    run = launch(folder, "sweep", "--engine", "mpi", "--checkpoint", TINY, "--world", "4", "--gradients", "--timeout",
                 str(TIMEOUT), "--seed", seed)
    end = time.monotonic() + 30
    while len(processes(seed)) < 4 and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(4)
    ranks = [p for p, words in processes(seed).items() if words[0] == COMMAND]
    namespaces = {os.readlink(f"/proc/{p}/ns/net") for p in ranks}
    check(len(ranks) == 4 and len(namespaces) == 2, f"{len(ranks)} ranks in {len(namespaces)} networks")
    ip("-n", B, "link", "set", f"v{B}", "down")
    since = time.monotonic()
    while time.monotonic() - since < TIMEOUT + 10 and any(p in processes(seed) for p in ranks):
        time.sleep(0.05)
    seconds = time.monotonic() - since
    left = [p for p in ranks if p in processes(seed)]
    check(not left, f"{len(left)} ranks are there {seconds:.1f} s after the link was cut")
    check(seconds < TIMEOUT + 4, f"ranks end {seconds:.1f} s after the link was cut")
    try:
        run.wait(20)
    except subprocess.TimeoutExpired:
        check(False, "mpirun does not end")
    err = (folder / "err").read_text()
    said = [line for line in err.split("\n") if line.startswith("shardplan: ")]
    print(f"cut -> status {run.poll()}, ranks ended after {seconds:.2f} s", *said, sep="\n  ")
    check(run.poll() not in (0, None), f"cut: status {run.poll()}")
    check(any(" waits for rank" in line for line in said), f"cut: {err}")


if shutil.which("ip") is None or shutil.which("unshare") is None or os.geteuid() != 0:
    print("skipped: network namespaces need root, ip and unshare")
    sys.exit(SKIPPED)
folder = Path(tempfile.mkdtemp(prefix="shardplan_hosts_"))
try:
    try:
        make_hosts()
    except subprocess.CalledProcessError as error:
        print(f"skipped: no network namespaces here: {error.stderr}")
        sys.exit(SKIPPED)
    main(folder)
finally:
    for host in HOSTS:
        for pid in ip("netns", "pids", host, good=False).stdout.split():
            os.kill(int(pid), signal.SIGKILL)
        ip("netns", "delete", host, good=False)
    shutil.rmtree(folder, ignore_errors=True)
finish()
