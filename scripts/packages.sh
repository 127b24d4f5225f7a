#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that the project needs and that are not there yet.
# Usage: scripts/packages.sh [build|all]: `build` for the library, the command and its tests, `all` (the default) also
# for the second compiler, the format check and the benchmarks.
set -euo pipefail

packages=(g++ cmake ninja-build python3 libeigen3-dev libopenblas-dev libfmt-dev nlohmann-json3-dev librange-v3-dev
          libcli11-dev doctest-dev libopenmpi-dev openmpi-bin)
case "${1:-all}" in
  build) ;;
  all) packages+=(clang-14 clang-format-14 libbenchmark-dev iproute2) ;;
  *) echo "usage: $0 [build|all]" >&2; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "$0: no apt here; install what these Debian packages hold: ${packages[*]}" >&2
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

echo "installing ${missing[*]}" >&2
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
"${as_root[@]}" apt-get update -qq >&2
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
