# SPDX-License-Identifier: Apache-2.0
"""What test scripts share: the checkpoint they run, and checks that do not end the script."""

import sys
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "data"
TINY = str(DATA / "tiny")

faults = []


def check(good, what):
    """Notes what is wrong; the script goes on."""
    if not good:
        faults.append(what)
        print("WRONG:", what, flush=True)


def finish():
    print(f"{len(faults)} faults" if faults else "no fault")
    sys.exit(1 if faults else 0)
