# SPDX-License-Identifier: Apache-2.0
"""What happens to the others when a rank is lost. Usage: faults.py SHARDPLAN"""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from launch import TINY, Run, check, finish, mpirun

COMMAND = sys.argv[1]
folder = Path(tempfile.mkdtemp(prefix="shardplan_faults_"))
TIMEOUT = 2


def work(*more, timeout=TIMEOUT):
    """Minutes of work, most of it in collectives."""
    return [COMMAND, "sweep", "--engine", "mpi", "--checkpoint", TINY, "--world", "4", "--gradients", "--timeout",
            str(timeout), *more]


def at_work(timeout=TIMEOUT, options=()):
    """The run, and its ranks once they have begun."""
    run = Run([(4, work(timeout=timeout))], options)
    ranks = run.wait_for_ranks(4)
    time.sleep(3)
    check(len(ranks) == 4 and run.process.poll() is None, f"does not work: {ranks}")
    return run, ranks, time.monotonic()


def ended(run, since, what, limit):
    run.wait(limit + 20)
    seconds = time.monotonic() - since
    check(not run.hung and seconds < limit, f"{what}: {seconds:.1f} s: {run.messages}")
    check(run.status != 0, f"{what}: status 0")
    check(run.text == "", f"{what}: prints {run.text}")
    left = run.leftovers()
    check(not left, f"{what}: leaves {left}")
    print(what, "-> status", run.status, f"{seconds:.2f} s", *run.said, sep="\n  ", flush=True)


def says_wait(text):
    return " waits for rank" in text and " in " in text and " over " in text


# A rank that stalls: the others wait for it, rank 0 says so for all.
for stalled in (3, 0):
    run, ranks, since = at_work()
    os.kill(ranks[stalled], signal.SIGSTOP)
    ended(run, since, f"rank {stalled} stalls", TIMEOUT + 4)
    check(run.status == 3, f"rank {stalled} stalls: status {run.status}")
    said = "\n".join(run.said)
    check("no progress for 2000 ms" in said and says_wait(said), f"rank {stalled} stalls: {run.messages}")
    for survivor in set(range(4)) - {stalled}:  # rank 0 says it for all, or each for itself
        check(f"rank {survivor} waits for rank" in said, f"rank {stalled} stalls, {survivor} says nothing: {said}")
    if stalled == 3:
        check("rank 3 does not answer" in said and len(run.said) == 1, f"rank 3 stalls: {run.messages}")

# A rank that is killed: the launcher tells the others to end, and they say where they were.
for killed in (2, 0):
    run, ranks, since = at_work()
    os.kill(ranks[killed], signal.SIGKILL)
    ended(run, since, f"rank {killed} is killed", TIMEOUT + 4)
    check(any(says_wait(line) for line in run.said), f"rank {killed} is killed: {run.messages}")

# Asked to end: one rank, or all by the launcher.
run, ranks, since = at_work()
os.kill(ranks[1], signal.SIGTERM)
ended(run, since, "rank 1 is told to end", TIMEOUT)
check("MPI_Finalize" not in run.messages, f"rank 1 is told to end: {run.messages}")
check(run.status == 3 and any("rank 1 was told to end" in line for line in run.said), f"told to end: {run.messages}")
# Nobody waits for it either where the launcher does not end the others.
run, ranks, since = at_work(timeout=60, options=["--enable-recovery"])
os.kill(ranks[1], signal.SIGTERM)
while run.ranks() and time.monotonic() - since < 4:
    time.sleep(0.05)
check(not run.ranks(), f"rank 1 is told to end: {sorted(run.ranks())} wait for it in vain")
run.wait(10)
left = run.leftovers()
check(not run.hung and not left, f"rank 1 is told to end: leaves {left}")
run, ranks, since = at_work()
run.process.terminate()
ended(run, since, "all are told to end", 4)

# A rank that never comes, one that is another program, one too few.
run = mpirun([(2, work("--sample", "1")), (2, ["sleep", "60"])], limit=20)
check((run.status == 3 or run.launcher_fails) and "MPI_Init" in run.messages and run.seconds < TIMEOUT + 6,
      f"never comes: {run.status} {run.seconds} {run.messages}")
run = mpirun([(3, work("--sample", "1")), (1, ["false"])], limit=20)
check(run.status != 0, "ends at once: status 0")

# Told to end in MPI_Init, where it would wait for long.
run = Run([(1, work(timeout=60)), (1, ["sleep", "60"])])
ranks = run.wait_for_ranks(2)
time.sleep(1.5)
since = time.monotonic()
os.kill(ranks[0], signal.SIGTERM)
ended(run, since, "told to end in MPI_Init", 4)
check((run.status == 3 or run.launcher_fails) and "told to end by a signal" in run.messages,
      f"told to end in MPI_Init: {run.status} {run.messages}")

# Alone with a wrong rank: bad input of one rank ends all, while they are in a collective.
begin = time.monotonic()
run = mpirun([(3, work(timeout=60)), (1, work("--bogus", timeout=60))], limit=40)
check(run.status == 2 and len(run.said) == 1 and "rank 3: " in run.said[0], f"bad input of one: {run.messages}")
check(time.monotonic() - begin < 20, "bad input of one: is heard of late")
run = mpirun([(4, work("--json", "--bogus"))])
check(json.loads(run.text)["error"]["kind"] == "usage", f"--json: {run.text}")

# Killed amid writing: the results are whole or absent.
plan = [COMMAND, "run", "--engine", "mpi", "--checkpoint", TINY, "--plan", "fsdp=2/zero3,tp=2", "--inputs",
        TINY + "/expected.safetensors", "--gradients", "--output"]
whole = folder / "whole"
run = mpirun([(4, [*plan, str(whole)])])
check(run.status == 0, f"run: {run.messages}")
run = Run([(4, [*plan, str(folder / "cut")])])
run.wait_for_ranks(4)
end = time.monotonic() + 30
while run.process.poll() is None and time.monotonic() < end:  # until it begins to write
    if any("cut" in p.name for p in folder.iterdir()):
        break
ranks = run.ranks()
if 0 in ranks:
    os.kill(ranks[0], signal.SIGKILL)
since = time.monotonic()
run.wait(20)
check(not run.hung, "killed amid writing: hangs")
cut = folder / "cut"
check(not cut.exists() or cut.read_bytes() == whole.read_bytes(), "killed amid writing: half of it is there")
left = run.leftovers()
check(not left, f"killed amid writing: leaves {left}")

shutil.rmtree(folder)
finish()
