# SPDX-License-Identifier: Apache-2.0
"""The engine nccl from the command line, on simulated GPUs: verify, run and sweep, several seeds of what a GPU leaves
open, GPUs that are shared and not, and what ends a run. Usage: command.py PROGRAMS, the folder of simulated programs"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ranks import TINY, Run, check, expect, finish, in_shared_memory

programs = Path(sys.argv[1])
SHARDPLAN = str(programs / "shardplan")
INPUTS = TINY + "/expected.safetensors"
folder = Path(tempfile.mkdtemp(prefix="shardplan_simulated_"))
left_by_others = in_shared_memory()


def asked(command, *arguments, timeout=20):
    return [SHARDPLAN, command, "--engine", "nccl", "--checkpoint", TINY, "--timeout", str(timeout), *arguments]


def threads(command, *arguments):
    return subprocess.run([SHARDPLAN, command, "--checkpoint", TINY, *arguments], check=True, capture_output=True,
                          text=True)


# ---- every collective, on a GPU per rank and on one that all share

for n, gpus, seed in [(1, 1, 1), (2, 2, 2), (4, 4, 3), (2, 1, 4), (4, 1, 5)]:
    run = Run(n, [str(programs / "nccl_collectives")], seed, gpus).wait()
    expect(run, 0, f"every collective over NCCL on {n} ranks")

# ---- plans: outputs, gradients and what is sent, in f64 to 1e-10

for n, gpus, plan in [
    (1, 1, "fsdp=1"),
    (2, 2, "cp=2/ring"),
    (4, 4, "pp=2/interleaved2,cp=2/ring/zigzag,ep=2"),
    (4, 1, "cp=4/ulysses,ep=4"),
    (4, 1, "fsdp=2/zero3,tp=2/sp,ep=2/all_reduce"),
    (4, 1, "tp=2,pp=2,ep=2/all_gather"),
]:
    run = Run(n, asked("verify", "--plan", plan, "--gradients", "--ledger", "--documents", "5+7", "--json"), n, gpus)
    expect(run.wait(), 0)
    answer = json.loads(run.text)
    check(answer["equal"] and answer["dtype"] == "f64", f"{plan}: {run.text}")
    check("this is for verification" in run.messages or gpus == n, f"{plan}: shares a GPU and does not say so")

run = Run(4, asked("sweep", "--world", "4", "--sample", "4", "--gradients", "--ledger", "--json"), 7).wait()
expect(run, 0)
check(json.loads(run.text)["equal"] == 4, f"sweep: {run.text}")

# ---- a run writes what threads write, up to the order of sums

plan = ["--plan", "cp=2/ring,tp=2", "--inputs", INPUTS, "--gradients", "--steps", "2", "--json"]
run = Run(4, asked("run", *plan, "--output", str(folder / "nccl")), 8).wait()
expect(run, 0)
theirs = json.loads(threads("run", *plan, "--output", str(folder / "threads")).stdout)
check(abs(json.loads(run.text)["loss"] - theirs["loss"]) < 1e-10, f"run: another loss: {run.text}")
check((folder / "nccl").stat().st_size == (folder / "threads").stat().st_size, "run: other results")

# ---- what goes wrong is told

run = Run(2, asked("verify", "--plan", "tp=2"), preset={"NCCL_HOSTID": "both"}).wait()
expect(run, 3, "Duplicate GPU detected")
run = Run(2, asked("verify", "--plan", "tp=2"), gpus=0).wait()
expect(run, 3, "needs a GPU")

output = folder / "lost"
begin = time.monotonic()
run = Run(4, asked("run", "--plan", "cp=2/ring,tp=2", "--inputs", INPUTS, "--gradients", "--steps", "500", "--output",
                   str(output), timeout=5))
time.sleep(3)
check(all(p.poll() is None for p in run.processes), "ended before a rank could be killed")
run.processes[2].kill()
killed = time.monotonic()
run.wait(40)
check(run.statuses == [3, 3, -9, 3], f"a rank is killed: {run.statuses}: {run.messages}")
check("rank 2" in run.messages, f"a rank is killed: {run.messages}")
check(time.monotonic() - killed < 10, f"a rank is killed: the others end after {time.monotonic() - killed:.1f} s")
check(not output.exists(), "a rank is killed: there is a result")

check(not in_shared_memory() - left_by_others, f"left behind: {in_shared_memory() - left_by_others}")
shutil.rmtree(folder)
finish()
