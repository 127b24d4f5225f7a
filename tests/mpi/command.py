# SPDX-License-Identifier: Apache-2.0
"""The command under mpirun: one answer for all processes, the same as with threads. Usage: command.py SHARDPLAN"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from launch import DATA, TINY, check, finish, mpirun

COMMAND = sys.argv[1]
INPUTS = str(DATA / "tiny" / "expected.safetensors")
folder = Path(tempfile.mkdtemp(prefix="shardplan_command_"))


def shardplan(*arguments):
    return [COMMAND, *arguments]


def verify(*arguments, checkpoint=TINY):
    return shardplan("verify", "--engine", "mpi", "--checkpoint", checkpoint, *arguments)


def expect(run, status, words, what, answers=1):
    """One message, of these words."""
    check(run.status == status, f"{what}: status {run.status}, not {status}: {run.messages}")
    for word in words:
        check(word in run.messages, f"{what}: does not say '{word}': {run.messages}")
    check(len(run.said) == answers, f"{what}: says {len(run.said)} times: {run.messages}")
    check(run.text == "", f"{what}: prints {run.text}")


# ---- the same answer as threads, once

for ranks, arguments in [
    (1, ["--plan", "tp=1"]),
    (4, ["--plan", "pp=2/interleaved2,cp=2/ring/zigzag,ep=2", "--gradients", "--ledger"]),
    (4, ["--plan", "fsdp=2/zero3,tp=2/sp,ep=4", "--dtype", "f32", "--ledger", "--steps", "2"]),
    (8, ["--plan", "dp_replicate=2,fsdp=2/zero2,tp=*,ep=2,etp=2", "--documents", "5+7", "--gradients", "--ledger"]),
]:
    run = mpirun([(ranks, verify(*arguments, "--json"))])
    world = ["--world", str(ranks)]
    threads = subprocess.run(shardplan("verify", "--checkpoint", TINY, *arguments, *world, "--json"), check=False,
                             capture_output=True, text=True)
    check(run.status == 0 and threads.returncode == 0, f"{arguments}: {run.status}, {threads.returncode}: {run.messages}")
    check(run.text and json.loads(run.text) == json.loads(threads.stdout), f"{arguments}: another answer than threads")
run = mpirun([(2, verify("--plan", "tp=2"))])
check(run.text.count("equal: 2 ranks") == 1 and "2 processes" in run.text, f"text is printed once: {run.text}")

run = mpirun([(2, verify("--plan", "tp=2", "--tolerance", "1e-300", "--json"))])
check(run.status == 1 and json.loads(run.text)["equal"] is False, f"not equal: status {run.status}")

run_plan = ["run", "--checkpoint", TINY, "--plan", "cp=2/ring,tp=2", "--inputs", INPUTS, "--gradients"]
run = mpirun([(4, shardplan(*run_plan, "--engine", "mpi", "--output", str(folder / "mpi")))])
subprocess.run(shardplan(*run_plan, "--output", str(folder / "threads")), check=True, capture_output=True)
check(run.status == 0 and (folder / "mpi").read_bytes() == (folder / "threads").read_bytes(), "run: other results")

sweep = ["sweep", "--checkpoint", TINY, "--engine", "mpi", "--sample", "3", "--gradients", "--ledger", "--json"]
run = mpirun([(2, shardplan(*sweep, "--world", "2"))])
check(run.status == 0 and json.loads(run.text)["equal"] == 3, f"sweep: {run.text} {run.messages}")

# ---- no

expect(mpirun([(3, verify("--plan", "tp=4"))]), 1, ["world"], "a plan of 4 on 3 processes", 0)
expect(mpirun([(2, verify("--plan", "tp=2", "--world", "4"))]), 1, ["--world is 4", "2 processes"], "--world of 4")
expect(mpirun([(3, shardplan(*sweep[:-1], "--world", "2"))]), 1, ["--world is 2", "3 processes"], "sweep of 2 on 3")
run = mpirun([(2, verify("--plan", "tp=2,ep=3"))])
check(run.status == 1 and run.messages.count("illegal:") == 1, f"an illegal plan: {run.status} {run.messages}")

# ---- bad input, on all and on one

expect(mpirun([(4, verify("--plan", "tp=2", "--bogus"))]), 2, ["--bogus"], "usage")
expect(mpirun([(2, verify("--plan", "tp=2", checkpoint=str(folder / "none")))]), 2, ["none"], "no checkpoint")
one_less = [(2, verify("--plan", "tp=3")), (1, verify("--plan", "tp=3", checkpoint=str(folder / "none")))]
expect(mpirun(one_less), 2, ["rank 2: ", "none"], "no checkpoint on one rank")
expect(mpirun([(1, verify("--plan", "tp=2")), (1, verify("--plan", "tp=2", "--bogus"))]), 2, ["rank 1: ", "--bogus"],
       "usage on one rank")

# ---- what ranks were given unlike

plan = ["--plan", "fsdp=3"]
for other, words in [
    (["--plan", "cp=3"], ["--plan", "'fsdp=3' on ranks 0, 2", "'cp=3' on rank 1"]),
    ([*plan, "--batch", "6"], ["--batch", "not given on ranks 0, 2", "'6' on rank 1"]),
    ([*plan, "--seed", "1"], ["--seed"]),
    ([*plan, "--gradients"], ["--gradients"]),
    ([*plan, "--dtype", "f32"], ["--dtype"]),
]:
    run = mpirun([(1, verify(*plan)), (1, verify(*other)), (1, verify(*plan))])
    expect(run, 2, ["must be given the same", *words], f"unlike {other}")
expect(mpirun([(1, verify("--plan", "tp=2")), (1, shardplan("sweep", *verify("--world", "2")[2:]))]), 2,
       ["the command: verify on rank 0, sweep on rank 1"], "another command")


def spoiled(name, file, place):
    """A copy of the checkpoint in which one byte is another."""
    there = folder / name
    there.mkdir()
    for part in ("config.json", "model.safetensors"):
        shutil.copy(Path(TINY) / part, there)
    data = bytearray((there / file).read_bytes())
    place = data.index(place) + len(place) - 1 if isinstance(place, bytes) else place
    data[place] ^= 1
    (there / file).write_bytes(data)
    return str(there)


same = spoiled("same", "model.safetensors", -1)
data = bytearray(Path(same, "model.safetensors").read_bytes())
data[-1] ^= 1
Path(same, "model.safetensors").write_bytes(data)
run = mpirun([(1, verify("--plan", "tp=2")), (1, verify("--plan", "tp=2", checkpoint=same))])
check(run.status == 0, f"an equal checkpoint elsewhere: {run.messages}")
for name, file, place, what in [("weights", "model.safetensors", -1000, "the weights"),
                                ("end", "model.safetensors", -1, "the weights"),
                                ("config", "config.json", b"e-06", "config.json")]:
    other = spoiled(name, file, place)
    run = mpirun([(1, verify("--plan", "tp=2")), (1, verify("--plan", "tp=2", checkpoint=other))])
    expect(run, 2, ["must be given the same", what, "on rank 0", "on rank 1"], f"another checkpoint: {name}")

tails = []
for last in (" ", "\n"):  # three bytes more than whole words of the digest
    there = folder / f"tail{ord(last)}"
    there.mkdir()
    shutil.copy(Path(TINY) / "model.safetensors", there)
    text = (Path(TINY) / "config.json").read_text(encoding="utf-8")
    (there / "config.json").write_text(text + " " * ((2 - len(text.encode())) % 8) + last, encoding="utf-8")
    tails.append(str(there))
expect(mpirun([(1, verify("--plan", "tp=2", checkpoint=tail)) for tail in tails]), 2,
       ["must be given the same", "config.json"], "another last byte")


def rows(name, last):
    """Two rows of three ids."""
    head = json.dumps({"input_ids": {"dtype": "I64", "shape": [2, 3], "data_offsets": [0, 48]}}).encode()
    ids = b"".join(i.to_bytes(8, "little") for i in (1, 2, 3, 4, 5, last))
    (folder / name).write_bytes(len(head).to_bytes(8, "little") + head + ids)
    return str(folder / name)


inputs = [verify("--plan", "tp=2", "--inputs", rows(f"rows{i}", i)) for i in (6, 7)]
expect(mpirun([(1, inputs[0]), (1, inputs[1])]), 2, ["must be given the same", "the rows"], "other rows")

# ---- a disk that is full where results go

full = folder / "full"
full.mkdir()
limited = ["sh", "-c", 'trap "" XFSZ; ulimit -f 100; exec "$@"', "sh"]  # files of 50 kB, and then an error
line = [*limited, *shardplan(*run_plan, "--engine", "mpi", "--output", str(full / "out"))]
run = mpirun([(4, line)], options=["--mca", "btl", "tcp,self"])  # no files in shared memory
expect(run, 2, [str(full / "out"), "cannot be written"], "a full disk")
check(not list(full.iterdir()), f"a full disk: {list(full.iterdir())} was left")

shutil.rmtree(folder)
finish()
