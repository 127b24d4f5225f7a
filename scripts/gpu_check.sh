#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks on one GPU what no machine without one can, in at most eight minutes, and prints a table: every kernel against
# the operation of the CPU, compute-sanitizer's memcheck and racecheck, plans and the collectives over NCCL with several
# ranks on the one GPU, and the forward of a large model against its floor and the public implementation. Exit status:
# 0 all went well, 1 a check failed, 3 there is no GPU. BUILD=DIR names a build that is there already; otherwise one is
# made in build/gpu. --small measures the forward of a small model, which only shows that it runs.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "$*" in
  "") size=() ;;
  --small) size=(--small) ;;
  *) echo "usage: scripts/gpu_check.sh [--small]" >&2 && exit 2 ;;
esac

gpus=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -1)
if [ -z "$gpus" ]; then
  echo "gpu_check: there is no GPU here (nvidia-smi lists none), so nothing was checked" >&2
  exit 3
fi

begin=$SECONDS
limit=480
build=${BUILD:-build/gpu}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export OPENBLAS_NUM_THREADS=1
num_checks=0
failed=0
table=()

# left SECONDS: no more than that, and no more than is left of the limit.
left() {
  local rest=$((limit - (SECONDS - begin)))
  echo $((rest < $1 ? (rest > 1 ? rest : 1) : $1))
}

# check NAME SECONDS COMMAND...: runs it; one line of the table, and the log where it fails. Status 77 is a failure
# here: what says that it skipped has not checked anything.
check() {
  local name=$1 most=$2 start=$SECONDS log="$logs/$num_checks" status
  shift 2
  num_checks=$((num_checks + 1))
  timeout "$(left "$most")" "$@" >"$log" 2>&1
  status=$?
  if [ $status -eq 0 ]; then
    table+=("$(printf '%-46s %-6s %4d s  %s' "$name" ok $((SECONDS - start)) "$(tail -1 "$log" | tr -s ' ' | cut -c1-120)")")
  else
    failed=1
    table+=("$(printf '%-46s %-6s %4d s  status %d' "$name" FAILED $((SECONDS - start)) $status)")
    echo "---- $name: status $status" >&2
    tail -30 "$log" >&2
  fi
}

# ranks N COMMAND...: N processes on one GPU, as torchrun would start them. Status of the first that fails.
ranks() {
  local n=$1 pids=() status=0 port=$((20000 + RANDOM % 10000)) r
  shift
  for ((r = 0; r < n; ++r)); do
    SHARDPLAN_SHARE_GPU=1 RANK=$r LOCAL_RANK=$r WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$@" &
    pids+=($!)
  done
  for r in "${pids[@]}"; do
    wait "$r"
    local code=$?
    [ $status -ne 0 ] || status=$code
  done
  return $status
}
export -f ranks

finish() {
  echo "GPU: $gpus; seed $seed; $((SECONDS - begin)) s"
  printf '%s\n' "${table[@]}"
  exit $failed
}

build_all() {
  [ -n "${BUILD:-}" ] && return 0
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSHARDPLAN_WITH_CUDA=ON -DSHARDPLAN_BUILD_EXAMPLES=OFF &&
    cmake --build "$build" --target shardplan_command cuda_kernels_device nccl_collectives || return
  cmake --build "$build" --target bench_device || true # there is none without Google Benchmark
}
export -f build_all
export build

bin=$build/bin
seed=$RANDOM
check "build" 400 bash -c build_all # timeout runs programs alone
[ $failed -eq 0 ] || finish

# Fresh inputs each time; memory is poisoned with NaN before a kernel sees it.
check "kernels against the CPU" 120 "$bin/cuda_kernels_device" --rand-seed=$seed
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ -n "$sanitizer" ]; then
  for tool in memcheck racecheck; do
    # Shapes of the tests are small. What is refused on purpose is no finding, and kernels of cuBLAS are not ours.
    check "kernels under $tool" 90 "$sanitizer" --tool $tool --report-api-errors no --error-exitcode 1 \
      --kernel-name kernel_substring=take_steps \
      "$bin/cuda_kernels_device" --test-case-exclude='*is refused by*'
  done
else
  table+=("$(printf '%-46s %s' 'kernels under compute-sanitizer' 'NOT RUN: compute-sanitizer was not found')")
fi

for n in 1 2 4; do
  check "collectives over NCCL, $n ranks" 60 bash -c 'ranks "$@"' - $n "$bin/nccl_collectives"
done

data=tests/data/tiny
# world_of PLAN: its ranks.
world_of() {
  local world
  world=$("$bin/shardplan" explain --model $data --plan "$1" --json 2>/dev/null | grep -m1 -oE '"world": *[0-9]+')
  echo "${world##*[^0-9]}"
}
for plan in tp=2 tp=2/sp cp=2/ring cp=2/ulysses pp=2 fsdp=2 ep=2,fsdp=2 tp=2,cp=2 pp=2,tp=2 fsdp=2,tp=2/sp \
  cp=2/ring/zigzag,tp=2 pp=2,fsdp=2; do
  check "verify $plan" 40 bash -c 'ranks "$@"' - "$(world_of $plan)" "$bin/shardplan" verify --engine nccl --timeout 20 \
    --checkpoint $data --plan $plan --gradients --seed $seed
done
for plan in cp=2/ring,tp=2/sp pp=2,fsdp=2/zero3 tp=2,ep=2; do
  check "verify $plan in bf16" 40 bash -c 'ranks "$@"' - "$(world_of $plan)" "$bin/shardplan" verify --engine nccl \
    --timeout 20 --checkpoint $data --plan $plan --gradients --seed $seed --dtype bf16
done
check "sweep --world 4" 120 bash -c 'ranks "$@"' - 4 "$bin/shardplan" sweep --engine nccl --timeout 20 \
  --checkpoint $data --world 4 --sample 20 --seed $seed

# The forward on one GPU alone; the public implementation is given as many layers.
if [ -x "$bin/bench_device" ]; then
  check "forward in bf16" 120 "$bin/bench_device" "${size[@]}"
  layers=$(grep -oE 'layers=[0-9]+' "$logs/$((num_checks - 1))" | tail -1)
else
  table+=("$(printf '%-46s %s' 'forward in bf16' 'NOT RUN: bench_device is not built')")
fi
if python3 -c 'import sys, torch, transformers; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  check "the same by transformers" 120 python3 tests/bench/transformers_forward.py "--${layers:-layers=48}" "${size[@]}"
else
  table+=("$(printf '%-46s %s' 'the same by transformers' 'NOT RUN: no torch and transformers that see the GPU')")
fi
finish
