# SPDX-License-Identifier: Apache-2.0
"""Where there is no GPU, what needs one says so in one message and ends with status 3 at once. Usage: no_gpu.py
GPU_CHECK SHARDPLAN. Ends with 77, skipped, where there is a GPU."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

gpu_check, shardplan = sys.argv[1:]
tiny = Path(gpu_check).parent.parent / "tests" / "data" / "tiny"
launched = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}

try:
    if subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.strip():
        print("skipped: there is a GPU here")
        sys.exit(77)
except OSError:
    pass


def run(command, variables={}):
    clean = {k: v for k, v in os.environ.items() if k not in launched}
    begin = time.monotonic()
    done = subprocess.run(command, env=clean | variables, capture_output=True, text=True)
    assert time.monotonic() - begin < 10, f"{command} took its time"
    return done


def expect(done, status, *parts):
    text = done.stderr
    assert done.returncode == status, f"{done.args}: status {done.returncode}, {text}"
    assert text.count("\n") == 1, f"{done.args}: more than one message: {text}"
    for part in parts:
        assert part in text, f"{done.args}: {part} is missing in: {text}"


expect(run(["bash", gpu_check]), 3, "gpu_check: there is no GPU here")

for command in (["verify", "--plan", "tp=2"], ["sweep", "--world", "2"]):
    asked = [shardplan, command[0], "--engine", "nccl", "--checkpoint", str(tiny), *command[1:]]
    expect(run(asked), 3, "nccl", "use --engine threads")
    expect(run(asked, launched), 3, "nccl", "use --engine threads")  # nobody waits for the others
    document = json.loads(run(asked + ["--json"]).stdout)
    assert document["error"]["kind"] == "engine", document
    expect(run(asked + ["--seed", "x"]), 2, "--seed")

# What carries nothing out needs no GPU.
assert run([shardplan, "check", "--engine", "nccl", "--model", str(tiny), "--plan", "tp=2"]).returncode == 0
