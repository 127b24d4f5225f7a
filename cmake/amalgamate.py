#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes single_include/shardplan/shardplan.hpp, the library in one file, out of include/shardplan.

Usage: amalgamate.py                 write it
       amalgamate.py --check         exit 1 with a diff when it is not what would be written
       amalgamate.py --forward DIR   write DIR/shardplan/*.hpp, one line each: the headers that the one file holds lead to
                                     it, the others to include/. With -I DIR every test runs on the one file.

Every header appears once, after those that it includes. Include guards stay, so that the file may meet the headers it
was made of in one translation unit; standard headers are hoisted and sorted. Same input, same bytes."""

import difflib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "include"
TARGET = ROOT / "single_include" / "shardplan" / "shardplan.hpp"
UMBRELLA = "shardplan/shardplan.hpp"

INCLUDE = re.compile(r"\s*#\s*include\s+<([^>]+)>\s*(?://.*)?")
CONDITION = re.compile(r"\s*#\s*(if|endif)")

BANNER = """\
// SPDX-License-Identifier: Apache-2.0
// shardplan {version}, the library in one file: parallelism plans as compile-time types.
// Generated from include/shardplan: do not edit, run `python3 cmake/amalgamate.py`.
"""


def version():
    text = (SOURCE / "shardplan" / "version.hpp").read_text(encoding="utf-8")
    return ".".join(re.search(rf"_{part} (\d+)", text).group(1) for part in ("MAJOR", "MINOR", "PATCH"))


def parts(header, seen, standard):
    """Lines of the headers that `header` includes and that are not in `seen`, each under its name, then its own."""
    seen.append(header)
    before, own, depth = [], [], 0
    for line in (SOURCE / header).read_text(encoding="utf-8").splitlines():
        condition = CONDITION.match(line)
        if condition:
            depth += 1 if condition.group(1) == "if" else -1
        match = INCLUDE.fullmatch(line)
        if not match:
            own.append(line)
        elif depth > 1:
            sys.exit(f"{header}: <{match.group(1)}> is included under a condition and cannot be hoisted")
        elif not match.group(1).startswith("shardplan/"):
            standard.add(match.group(1))
        elif match.group(1) not in seen:
            before += parts(match.group(1), seen, standard)
    return [*before, f"// ---- {header} ----", *own, ""]


def amalgamated():
    """The text of the one file, and the headers that it holds."""
    seen, standard = [], set()
    body = parts(UMBRELLA, seen, standard)
    includes = [f"#include <{name}>" for name in sorted(standard)]
    text = "\n".join([BANNER.format(version=version()).rstrip(), *includes, "", *body])
    return re.sub(r"\n{3,}", "\n\n", text), seen


def forward(folder, held):
    for path in sorted((SOURCE / "shardplan").rglob("*.hpp")):
        header = path.relative_to(SOURCE).as_posix()
        to = folder / header
        line = f'#include "{(TARGET if header in held else path).as_posix()}"\n'
        to.parent.mkdir(parents=True, exist_ok=True)
        if not to.exists() or to.read_text(encoding="utf-8") != line:
            to.write_text(line, encoding="utf-8")


def main(arguments):
    text, held = amalgamated()
    if arguments[:1] == ["--forward"] and len(arguments) == 2:
        forward(Path(arguments[1]), held)
    elif arguments == ["--check"]:
        now = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
        name = TARGET.relative_to(ROOT).as_posix()
        sys.stdout.writelines(difflib.unified_diff(now.splitlines(True), text.splitlines(True), name, "as generated"))
        if now != text:
            sys.exit("out of date: run `python3 cmake/amalgamate.py`")
    elif not arguments:
        TARGET.parent.mkdir(parents=True, exist_ok=True)
        TARGET.write_text(text, encoding="utf-8", newline="\n")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
