#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs further compilers that the tests ask where they are found, as far as apt offers them; one that it does not
# offer is no failure, and its tests are skipped.
set -uo pipefail

as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
updated=
for package in clang-19 clang-22; do
  command -v "clang++-${package#clang-}" >/dev/null && continue
  if command -v apt-get >/dev/null && [ -z "$updated" ]; then
    "${as_root[@]}" apt-get update -qq >&2
    updated=yes
  fi
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" \
    >/dev/null 2>&1 || echo "$0: $package is not to be had here, its tests are skipped" >&2
done
exit 0
