#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh clone to a verified plan: builds the command, then runs a small Qwen3-MoE checkpoint on 16 ranks and
# compares every tensor with the one-rank baseline. The exit status is that of the comparison.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/packages.sh build
{
  cmake --preset release
  cmake --build --preset release --target shardplan_command
} >&2
exec build/release/bin/shardplan verify --checkpoint tests/data/tiny --plan pp=2,fsdp=2,cp=2/ring/zigzag,tp=2/sp,ep=4
