#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/errors.md: what compilers say of wrong plans, taken from tests/compile_fail.

Usage: errors_page.py            write it
       errors_page.py --check    exit 1 with a diff when it is not what would be written

What a compiler that is not at hand says is kept as the page has it."""

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import which

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "errors.md"

HEAD = """\
# Compile errors

Generated from `tests/compile_fail`: do not edit, run `python3 tests/tools/errors_page.py`.

A wrong plan is one error per broken rule: all of them at once, and none that only follows from another. The error says
the sentence of the rule, and beside it stand its numbers, as types, then the plan and the model. Every file below is a
test, which also counts the errors. [rules.md](rules.md) explains each rule; a plan that is asked about with `LegalPlan`
instead of `checked` is no error. Name a plan, as below, and messages say the name instead of all policies.

Of what a compiler prints, the `error` lines are shown, and before (g++) or after them (clang++, nvcc) the line that names
the rule with its numbers; the lines left out tell the way from `checked` to the rule. So are positions inside the library.
"""

CASES = [
    ("five_broken_rules", "Five rules at once"),
    ("equal_numbers_twice", "Two plans that are wrong by the same numbers"),
    ("every_degree_is_in_range", "A degree of 0"),
    ("users_own_rule", "A rule of one's own"),
    ("plan_text_is_wrong_at_character", "A text that is no plan"),
]

COMPILERS = [  # title, programs to try, major version, flags, whether it is shown for every case or the first alone
    ("g++ 12", ["g++-12", "g++"], "12", ["-std=c++20", "-fsyntax-only"], True),
    ("clang++ 14", ["clang++-14"], "14", ["-std=c++20", "-fsyntax-only"], True),
    ("clang++ 19", ["clang++-19"], "19", ["-std=c++20", "-fsyntax-only"], False),
    ("clang++ 22, which puts the numbers into the message", ["clang++-22"], "22", ["-std=c++26", "-fsyntax-only"], True),
    ("nvcc 13", ["nvcc"], "13", ["-std=c++20", "-x", "cu", "-c", "-o", os.devnull], False),
]


# Errors, and the line beside them that names the rule with its numbers.
SHOWN = re.compile(r" error: |[Ii]nstantiation of .*(broken_with|wrong_at_character)<")


def find(programs, major):
    for program in filter(which, programs):
        if program == "nvcc":
            version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.split("release ")[-1]
        else:
            version = subprocess.run([program, "-dumpversion"], capture_output=True, text=True).stdout
        if version.split(".")[0].strip() == major:
            return program
    return None


def code(source):
    """The wrong variant of a file, without the comments at its head and the includes."""
    text = re.sub(r"\A(//.*\n)*", "", source.read_text(encoding="utf-8"))
    text = re.sub(r"#include.*\n+", "", text)
    text = re.sub(r"#ifdef SHARDPLAN_FIXED\n(?:.*\n)*?#else\n((?:.*\n)*?)#endif\n", r"\1", text)
    return text.strip()


def said(program, flags, source):
    command = [program, *flags, "-Iinclude", source.relative_to(ROOT).as_posix()]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    lines = [line for line in (run.stderr + run.stdout).splitlines() if SHOWN.search(line)]
    lines = [re.sub(r"^(include/[^:(]*)(:\d+:\d+|\(\d+\)):", r"\1:", line.strip()) for line in lines]
    return "\n".join(re.sub(r'(?<=") at line \d+ of include/.*', "", line) for line in lines)


def page(old):
    parts = [HEAD]
    for index, (name, title) in enumerate(CASES):
        source = ROOT / "tests" / "compile_fail" / f"{name}.cpp"
        parts.append(f"## {title}\n\n```cpp\n{code(source)}\n```\n")
        for compiler, programs, major, flags, always in COMPILERS:
            if index > 0 and not always:
                continue
            heading = f"### {compiler}: {title.lower()}\n"
            program = find(programs, major)
            kept = re.search(re.escape(heading) + r"\n```text\n(.*?)\n```\n", old, re.S)
            text = said(program, flags, source) if program else kept.group(1) if kept else None
            if text is not None:
                parts.append(f"{heading}\n```text\n{text}\n```\n")
    return "\n".join(parts)


def main(arguments):
    old = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    new = page(old)
    if arguments == ["--check"]:
        sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), "docs/errors.md", "now"))
        return "out of date: run `python3 tests/tools/errors_page.py`" if old != new else 0
    if arguments:
        return __doc__
    PAGE.write_text(new, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
