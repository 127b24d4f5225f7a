#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How many templates clang++ instantiates for plans.cpp beside this file: counts, which repeat exactly, not seconds.

Usage: instantiations.py COMPILER           exit 1 when a count is more than 5% above instantiations.json
       instantiations.py COMPILER --write   write instantiations.json, in the commit that says why"""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
BASELINE = HERE / "instantiations.json"
NUM_PLANS = (0, 1, 32)
EVENTS = ("InstantiateClass", "InstantiateFunction")
ALLOWED = 1.05


def events(compiler, num_plans):
    """Every instantiated template, as often as it was: (event, name)."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([compiler, "-std=c++20", "-c", "-ftime-trace", "-ftime-trace-granularity=0",
                        f"-I{HERE.parent.parent / 'include'}", f"-DNUM_PLANS={num_plans}", str(HERE / "plans.cpp"),
                        "-o", f"{folder}/plans.o"], check=True)
        trace = json.loads(Path(folder, "plans.json").read_text(encoding="utf-8"))["traceEvents"]
    return Counter((e["name"], e["args"]["detail"].split("<")[0]) for e in trace if e["name"] in EVENTS)


def main(arguments):
    compiler, write = arguments[0], arguments[1:] == ["--write"]
    if arguments[1:] and not write:
        return __doc__
    found = {n: events(compiler, n) for n in NUM_PLANS}
    counts = {f"{n} plans": {event: sum(c for (e, _), c in found[n].items() if e == event) for event in EVENTS}
              for n in NUM_PLANS}
    if write:
        BASELINE.write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")
        return 0
    baseline = json.loads(BASELINE.read_text(encoding="utf-8"))
    above = []
    for n in NUM_PLANS:
        for event in EVENTS:
            was, now = baseline[f"{n} plans"][event], counts[f"{n} plans"][event]
            print(f"{n:2} plans, {event}: {now}, baseline {was} ({now / was - 1:+.1%})")
            if now > was * ALLOWED:
                above.append(n)
    for n in sorted(set(above)):
        print(f"\n{n} plans, most of:")
        for (event, name), count in found[n].most_common(12):
            print(f"{count:6} {event} {name}")
    if above:
        return "more templates are instantiated: find out why, or accept them (target instantiation_counts) and say why"
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) if sys.argv[1:] else __doc__)
