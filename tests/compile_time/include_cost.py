#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What it costs to include the library, against <ranges>, and what a further checked plan costs.

Usage: include_cost.py REPETITIONS COMPILER...

Times are processor time, the least of the repetitions, which take turns. They are printed only: exit status 1 when the
library, preprocessed, is longer than 0.6 of <ranges>, which is what repeats exactly."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUDGET = 0.6
PLANS = (1, 33)


def command(compiler, *arguments):
    return [compiler, "-std=c++20", f"-I{HERE.parent.parent / 'include'}", *arguments]


def seconds(arguments):
    """Processor time of a command and of what it starts."""
    child = subprocess.Popen(arguments)
    _, status, used = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"{' '.join(arguments)}: failed")
    return used.ru_utime + used.ru_stime


def num_lines(arguments):
    text = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    return sum(1 for line in text.splitlines() if line.strip() and not line.startswith("#"))


def measure(compiler, repetitions, folder):
    """The share of <ranges> in lines."""
    sources = {name: Path(folder, f"{name}.cpp") for name in ("empty", "ranges", "library")}
    sources["empty"].write_text("")
    sources["ranges"].write_text("#include <ranges>\n")
    sources["library"].write_text("#include <shardplan/shardplan.hpp>\n")
    tries = {name: command(compiler, "-fsyntax-only", str(source)) for name, source in sources.items()}
    for n in PLANS:
        tries[f"{n} plans"] = command(compiler, "-fsyntax-only", f"-DNUM_PLANS={n}", str(HERE / "plans.cpp"))
    least = {name: min(times) for name, times in
             zip(tries, zip(*([seconds(t) for t in tries.values()] for _ in range(repetitions))))}
    lines = {name: num_lines(command(compiler, "-E", str(sources[name]))) for name in ("ranges", "library")}
    share = lines["library"] / lines["ranges"]
    print(f"{compiler}: empty file {least['empty'] * 1e3:.0f} ms, <ranges> {least['ranges'] * 1e3:.0f} ms, "
          f"the library {least['library'] * 1e3:.0f} ms: {least['library'] / least['ranges']:.2f} of <ranges>; "
          f"{lines['library']} of {lines['ranges']} lines: {share:.2f}; a further checked plan "
          f"{(least[f'{PLANS[1]} plans'] - least[f'{PLANS[0]} plans']) / (PLANS[1] - PLANS[0]) * 1e3:.1f} ms")
    return share


def main(arguments):
    if len(arguments) < 2:
        return __doc__
    with tempfile.TemporaryDirectory() as folder:
        shares = [measure(compiler, int(arguments[0]), folder) for compiler in arguments[1:]]
    return f"the library is longer than {BUDGET} of <ranges>" if max(shares) > BUDGET else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
