# SPDX-License-Identifier: Apache-2.0
"""Kills a random rank at a random moment of a run, again and again: nothing hangs, nothing stays, no result is half
there. Usage: kills.py SHARDPLAN [--count N] [--seed S]; with --only SEED, one of them again."""

import argparse
import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path

from launch import TINY, Run, check, finish, mpirun

arguments = argparse.ArgumentParser()
arguments.add_argument("command")
arguments.add_argument("--count", type=int, default=200)
arguments.add_argument("--seed", type=int, default=0)
arguments.add_argument("--only", type=int)
arguments.add_argument("--timeout", type=int, default=3)
o = arguments.parse_args()

PLANS = ["tp=2,cp=2/ring", "pp=2,fsdp=2/zero3", "dp_replicate=2,tp=2/sp,ep=2", "cp=4/ulysses,ep=4"]
folder = Path(tempfile.mkdtemp(prefix="shardplan_kills_"))


def line(plan, output):
    return [o.command, "run", "--engine", "mpi", "--checkpoint", TINY, "--plan", plan, "--inputs",
            TINY + "/expected.safetensors", "--gradients", "--steps", "12", "--output", str(output), "--timeout",
            str(o.timeout)]


whole, length = {}, {}
for plan in PLANS:
    output = folder / "whole"
    run = mpirun([(4, line(plan, output))])
    check(run.status == 0, f"{plan}: {run.messages}")
    whole[plan] = output.read_bytes()
    length[plan] = run.seconds
    print(f"undisturbed {plan}: {run.seconds:.2f} s", flush=True)

ends = {}
for seed in [o.only] if o.only is not None else range(o.seed, o.seed + o.count):
    choose = random.Random(seed)
    plan = choose.choice(PLANS)
    kind = choose.choices([signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM], [8, 1, 1])[0]
    rank = choose.randrange(4)
    moment = choose.random() * length[plan]
    output = folder / f"out{seed}"
    run = Run([(4, line(plan, output))])
    time.sleep(max(0, run.begin + moment - time.monotonic()))
    ranks = run.ranks()
    hit = False
    if rank in ranks:
        try:
            os.kill(ranks[rank], kind)
            hit = True
        except ProcessLookupError:
            pass
    since = time.monotonic()
    while hit and kind == signal.SIGSTOP and run.process.poll() is None and time.monotonic() < since + o.timeout + 5:
        if set(run.ranks()) == {rank}:  # it was done; the others have ended, and only the launcher waits for it
            os.kill(ranks[rank], signal.SIGCONT)
            break
        time.sleep(0.1)
    run.wait(length[plan] + o.timeout + 15)
    seconds = time.monotonic() - since
    name = f"seed {seed}: {kind.name} to rank {rank} at {moment:.3f} s of {plan}"
    print(name, f"-> {'hit' if hit else 'nobody there'}, status {run.status} after {seconds:.2f} s", flush=True)
    check(not run.hung, f"{name}: hangs: {run.messages}")
    if output.exists():
        check(output.read_bytes() == whole[plan], f"{name}: half of the results is there")
    else:
        check(run.status != 0, f"{name}: status 0 without results")
    left = run.leftovers()
    check(not left, f"{name}: leaves {left}")
    key = (kind.name if hit else "nobody", run.status)
    ends[key] = ends.get(key, 0) + 1
    for old in folder.iterdir():
        old.unlink()
for (kind, status), count in sorted(ends.items()):
    print(f"{kind}: status {status}: {count} times")
shutil.rmtree(folder)
finish()
