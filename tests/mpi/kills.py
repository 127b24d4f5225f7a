# SPDX-License-Identifier: Apache-2.0
"""Kills a random rank at a random moment of a run, again and again: nothing hangs, nothing stays, no result is half
there. Usage: kills.py SHARDPLAN [--count N] [--seed S]; with --only SEED, one of them again; with --start, SIGTERM
as the ranks begin."""

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
arguments.add_argument("--start", action="store_true")
arguments.add_argument("--timeout", type=int, default=3)
o = arguments.parse_args()

GRACE = 4  # seconds, of a machine at work
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


def watch(run, spared, limit):
    """Until the ranks have ended, but not `spared`, a stopped one; the seconds it took. Goes on with the stopped one
    when it is alone: its work was done, and only the launcher waits for it."""
    since = time.monotonic()
    while set(there := run.ranks()) - spared and time.monotonic() < since + limit:
        time.sleep(0.02)
    seconds = time.monotonic() - since
    for rank in spared & set(there):
        try:
            os.kill(there[rank], signal.SIGCONT)
        except ProcessLookupError:
            pass
    return seconds


ends = {}
for seed in [o.only] if o.only is not None else range(o.seed, o.seed + o.count):
    choose = random.Random(seed)
    plan = choose.choice(PLANS)
    kind = choose.choices([signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM], [8, 1, 1])[0]
    rank = choose.randrange(4)
    moment = choose.random() * length[plan]
    if o.start:
        kind, moment = signal.SIGTERM, 0.1 + moment / length[plan] * 0.4
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
    seconds = 0
    if hit:
        seconds = watch(run, {rank} if kind == signal.SIGSTOP else set(), o.timeout + GRACE)
    stay = run.ranks()
    run.wait(length[plan] + 10)
    name = f"seed {seed}: {kind.name} to rank {rank} at {moment:.3f} s of {plan}"
    how = f"status {run.status}" + (", the launcher fails" if run.launcher_fails else "")
    print(name, f"-> {'hit' if hit else 'nobody there'}, {how}, ranks ended after {seconds:.2f} s", flush=True)
    check(seconds < o.timeout + GRACE, f"{name}: ranks {sorted(stay)} are there after {seconds:.2f} s: {run.messages}")
    left = run.leftovers()
    # A rank that is told to end does not end while it makes itself known.
    check(not run.hung or (run.launcher_fails and kind != signal.SIGTERM), f"{name}: hangs: {run.messages}")
    if output.exists():
        check(output.read_bytes() == whole[plan], f"{name}: half of the results is there")
    else:
        check(run.status != 0, f"{name}: status 0 without results")
    check(not left, f"{name}: leaves {left}")
    key = (kind.name if hit else "nobody", how)
    ends[key] = ends.get(key, 0) + 1
    for old in folder.iterdir():
        old.unlink()
for (kind, how), count in sorted(ends.items()):
    print(f"{kind}: {how}: {count} times")
shutil.rmtree(folder)
finish()
