#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds everything and runs every test: first by the second compiler and under sanitizers, last the main suite, whose
# summary ends the output.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/packages.sh
build() {
  cmake --preset "$1" >/dev/null
  cmake --build --preset "$1"
}

build release

cmake --preset clang >/dev/null
cmake --build --preset clang --target core_tests
ctest --preset clang -L '^core$'

# The same tests on the library in one file.
build single
ctest --preset single -L '^(core|compile_fail)$'

build asan
ctest --preset asan

# The thread sanitizer of gcc 12 cannot place its shadow memory under the strongest address randomisation.
build tsan
if [ "$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 28)" -gt 28 ]; then
  setarch -R ctest --preset tsan
else
  ctest --preset tsan
fi

ctest --preset release
