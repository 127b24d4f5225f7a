# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_check.sh from its first check to its last, with programs for simulated GPUs: all of its plans are legal,
and what fails is told. Usage: gpu_check.py BUILD, the folder whose bin holds the simulated programs"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ranks import check, finish

build = Path(sys.argv[1]).resolve()
script = Path(__file__).resolve().parent.parent.parent / "scripts" / "gpu_check.sh"
folder = Path(tempfile.mkdtemp(prefix="shardplan_gpu_check_"))
for name, text in [("nvidia-smi", "echo 'simulated GPU, 0, 1 GiB'"), ("compute-sanitizer", 'while [ "${1#-}" != "$1" ]; do'
                   ' case $1 in --error-exitcode | --tool | --report-api-errors | --kernel-name) shift ;; esac; shift; done\n'
                   'exec "$@" --test-case="*SwiGLU*"')]:
    (folder / name).write_text("#!/bin/sh\n" + text + "\n")
    (folder / name).chmod(0o755)


def run(programs, **variables):
    done = subprocess.run(["bash", str(script), "--small"], capture_output=True, text=True,
                          env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "BUILD": str(programs),
                               "SHARDPLAN_SIMULATED_GPUS": "1", **variables})
    print(done.stdout, done.stderr, flush=True)
    return done


done = run(build)
states = re.findall(r"^(.{46}) (ok|FAILED|NOT RUN)", done.stdout, re.M)
check(done.returncode == 0, f"status {done.returncode}")
check(all(state == "ok" for name, state in states if "transformers" not in name), f"not ok: {states}")
plans = [name for name, _ in states if name.startswith("verify ")]
check(len(plans) == 15 and sum("bf16" in name for name in plans) == 3, f"not twelve plans and three: {states}")
check(all(any(word in name for name, _ in states)
          for word in ["kernels", "memcheck", "4 ranks", "sweep", "forward"]), f"{states}")

# A GPU with no memory to speak of, and kernels that were not looked at again.
bare = folder / "bin"
bare.mkdir()
for name in ("shardplan", "shardplan-nccl", "nccl_collectives"):
    (bare / name).symlink_to(build / "bin" / name)
(bare / "cuda_kernels_device").write_text("#!/bin/sh\nexit 77\n")
(bare / "cuda_kernels_device").chmod(0o755)
done = run(folder, SHARDPLAN_SIMULATED_MEMORY="4096")
check(done.returncode == 1, f"status {done.returncode}, not 1")
check(re.search(r"^kernels against the CPU +FAILED .*status 77$", done.stdout, re.M), "what skipped counts as checked")
check(re.search(r"^verify tp=2 +FAILED .*status 3$", done.stdout, re.M), "a plan that failed counts as carried out")
check("out of memory (cudaErrorMemoryAllocation)" in done.stderr, "why it failed is not told")
shutil.rmtree(folder)
finish()
