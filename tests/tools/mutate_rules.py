#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes mistakes in the rules, one at a time, and asks whether the tests of the rules notice.

Usage: mutate_rules.py [--compiler CXX] [--jobs N] [--only REGEX] [--sample N] [--list]

In a copy of include/, for each rule of include/shardplan/rules: every comparison turned round and off by one, every
number and limit off by one, every division turned round, every factor and every listed value left out, every
conjunction loosened or tightened, every pair of neighbouring operands exchanged, every presumption dropped, `applies`
dropped, math made advice and the reverse, and the rule left out of its list. The programs TESTS are compiled against the
copy, once for all mistakes inside functions, which are switched on one by one, and once for each of the others and of
those not noticed yet. A mistake is noticed when a program does not compile or fails. Each that is not must be one of
equivalent_rule_mutants.txt beside this file, whose lines say why it is no mistake, and each of those must survive.
Exit status 0 when so, 1 otherwise."""

import argparse
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parent.parent.parent
TESTS = ["test_rules", "test_check", "test_silence", "test_refusals"]  # the quickest first
EXPLAINED = Path(__file__).with_name("equivalent_rule_mutants.txt")

TURNED = {"<": ["<=", ">="], "<=": ["<", ">"], ">": [">=", "<="], ">=": [">", "<"], "==": ["!="], "!=": ["=="],
          "&&": ["||"], "||": ["&&"]}
TOKEN = re.compile(r"<=|>=|==|!=|&&|\|\||(?<=\s)[<>](?=\s)")
NUMBER = re.compile(r"(?<![\w.])\d+(?!\w)|\bmax_degree\b|\w+::capacity(?:\(\))?")
NAME = r"\w+(?:\.\w+)*(?:\(\w+(?:\.\w+)*\))?"
PRODUCT = re.compile(rf"({NAME}) \* ({NAME})")
DIVISION = re.compile(rf"((?:{NAME} \* )*{NAME}) % ({NAME}|\([^()]*\))")
VALUES = re.compile(r"\{(\w+(?:, \w+)+)\}")
DECIDES = re.compile(r"constexpr bool (holds|applies|needs_balance|fit)\([^)]*\) \{")
RULE = re.compile(r"^struct (\w+) \{", re.M)
LIST = re.compile(r"using (\w+) =\s+(?:list|join)<([^;]*)>;")


def body_after(text, begin):
    """[begin, end) of the braces' content that begins at `begin`."""
    depth, end = 1, begin
    while depth:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return begin, end - 1


def code(text):
    """The text with comments and strings blanked, every character in its place."""
    return re.sub(r'//[^\n]*|/\*.*?\*/|"[^"\n]*"', lambda m: " " * len(m.group()), text)


def expression_changes(text, begin, end):
    """(begin, end, replacement) of each changed piece of an expression or a function's body."""
    for m in TOKEN.finditer(text, begin, end):
        for turned in TURNED[m.group()]:
            yield m.start(), m.end(), turned
    for m in NUMBER.finditer(text, begin, end):
        for step in ("+ 1",) if m.group() == "0" else ("+ 1", "- 1"):  # nothing compared here is negative but by mistake
            yield m.start(), m.end(), f"({m.group()} {step})"
    for m in PRODUCT.finditer(text, begin, end):
        yield m.start(), m.end(), m.group(1)
        yield m.start(), m.end(), m.group(2)
    for m in DIVISION.finditer(text, begin, end):
        yield m.start(), m.end(), f"({m.group(2)}) % ({m.group(1)})"
    for m in VALUES.finditer(text, begin, end):
        values = m.group(1).split(", ")
        for i in range(len(values)):
            yield m.start(1), m.end(1), ", ".join(values[:i] + values[i + 1:])
    for m in re.finditer(r"!(?=\w)", text[begin:end]):
        yield begin + m.start(), begin + m.end(), ""


def without(names, i):
    return ", ".join(names[:i] + names[i + 1:])


def names_in(m, group):
    return [name.strip() for name in m.group(group).split(",")]


@dataclass(frozen=True)
class Mutant:
    """`new` in place of [begin, end) of a header: the body of a function when `switched`."""
    path: Path  # below include/
    begin: int
    end: int
    new: str
    switched: bool


def mutants_of(path):
    """(name, mutant) of each mutant of a header."""
    text = (ROOT / "include" / path).read_text(encoding="utf-8")
    seen = code(text)
    rules = [(m.start(), m.group(1)) for m in RULE.finditer(seen)]

    def whose(at):
        return max((r for r in rules if r[0] <= at), default=(0, ""))[1]

    def other(begin, end, new):
        return Mutant(path, begin, end, new, False)

    for m in DECIDES.finditer(seen):
        begin, end = body_after(seen, m.end())
        owner = whose(m.start()) if m.group(1) != "fit" else "detail_nodes"
        for a, b, new in expression_changes(seen, begin, end):
            body = text[begin:a] + new + text[b:end]
            at = a - begin
            line = body[body.rfind("\n", 0, at) + 1:].split("\n")[0].strip()
            yield f"{owner}: {m.group(1)}: {line}", Mutant(path, begin, end, body, True)
        if m.group(1) == "applies":
            yield f"{owner}: applies: return true;", Mutant(path, begin, end, " return true; ", True)
    for m in LIST.finditer(seen):
        names = names_in(m, 2)
        begin, end = m.span(2)
        if m.group(1) == "operands":
            for i in range(len(names) - 1):
                swapped = names[:i] + [names[i + 1], names[i]] + names[i + 2:]
                yield f"{whose(begin)}: exchanges {names[i]} and {names[i + 1]}", other(begin, end, ", ".join(swapped))
        elif m.group(1) == "presumes":
            for i, name in enumerate(names):
                yield f"{whose(begin)}: does not presume {name}", other(begin, end, without(names, i))
        elif m.group(1).endswith("_rules"):
            for i, name in enumerate(names):
                yield f"{m.group(1)}: without {name}", other(begin, end, without(names, i))
    for m in re.finditer(r"rule_kind::(math|advice);", seen):
        kind = {"math": "advice", "advice": "math"}[m.group(1)]
        yield f"{whose(m.start())}: is {kind}", other(*m.span(1), kind)


def all_mutants():
    """{name: mutant}; equal ones are one."""
    out, seen = {}, set()
    folder = ROOT / "include/shardplan"
    for path in [*sorted((folder / "rules").glob("*.hpp")), folder / "rules.hpp"]:
        for name, mutant in mutants_of(path.relative_to(ROOT / "include")) if path.name != "fixes.hpp" else []:
            if mutant in seen:
                continue
            seen.add(mutant)
            while name in out:
                name += " (again)"
            out[name] = mutant
    return out


class Workshop:
    """A folder with a copy of the headers, in which mistakes are made."""

    def __init__(self, compiler, folder, prepared):
        self.compiler, self.folder, self.prepared = compiler, folder, prepared
        shutil.copytree(prepared / "include", folder / "include")

    def write(self, path, changes):
        """A header with [begin, end) replaced for each (begin, end, new)."""
        text = (self.prepared / "include" / path).read_text(encoding="utf-8")
        for begin, end, new in sorted(changes, reverse=True):
            text = text[:begin] + new + text[end:]
        (self.folder / "include" / path).write_text(text, encoding="utf-8")

    def build(self, test):
        """The program, or None when it does not compile."""
        unit, program = self.folder / f"{test}.o", self.folder / test
        if not succeeds([self.compiler, "-std=c++20", "-O0", "-include", self.prepared / "outside.hpp",
                         f"-I{self.folder}/include", "-c", ROOT / f"tests/unit/{test}.cpp", "-o", unit]):
            return None
        if not succeeds([self.compiler, unit, self.prepared / "main.o", self.prepared / "switch.o", "-o", program]):
            sys.exit(f"{test}: does not link")
        return program

    def notices(self, mutant):
        """Which test notices a mutant, compiled by itself; None: no test does. Of one that was switched on in vain only
        what is asked at compile time is not known yet."""
        self.write(mutant.path, [(mutant.begin, mutant.end, mutant.new)])
        try:
            for test in TESTS:
                if mutant.switched and "static_assert" not in source_of(test):
                    continue
                program = self.build(test)
                if program is None:
                    return f"{test} does not compile"
                if not mutant.switched and not passes(program):
                    return test
            return None
        finally:
            self.write(mutant.path, [])

    def build_switched(self, mutants):
        """Programs in which all the mutants are, and the environment says which of them is at work."""
        bodies = {}
        for number, mutant in enumerate(mutants, 1):
            bodies.setdefault((mutant.path, mutant.begin, mutant.end), []).append((number, mutant.new))
        changes = {}
        for (path, begin, end), news in bodies.items():
            text = (self.prepared / "include" / path).read_text(encoding="utf-8")
            cases = "".join(f"case {number}: {{{new}\n}}\n" for number, new in news)
            new = f"if (!__builtin_is_constant_evaluated()) switch (mutant_at_work) {{\n{cases}}}\n{text[begin:end]}"
            changes.setdefault(path, []).append((begin, end, new))
        for path, of_path in changes.items():
            self.write(path, of_path)
        programs = {test: self.build(test) for test in TESTS}
        for path in changes:
            self.write(path, [])
        return programs


def source_of(test):
    return (ROOT / f"tests/unit/{test}.cpp").read_text(encoding="utf-8")


def succeeds(command, **environment):
    """Within a minute of processor time: what does not end, fails."""
    return subprocess.run([str(word) for word in command], capture_output=True, env={**os.environ, **environment},
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (60, 60))).returncode == 0


def passes(program, number=0):
    return succeeds([program, "--abort-after=1"], MUTANT=str(number))


def prepare(compiler, folder):
    """What no mutant changes: the main program, the switch, and the headers from outside, read once."""
    shutil.copytree(ROOT / "include", folder / "include")
    outside = set()
    for test in TESTS:
        outside |= set(re.findall(r"#include <(?!shardplan/)[^>]*>", source_of(test)))
    (folder / "outside.hpp").write_text("\n".join(sorted(outside)) + "\nextern const int mutant_at_work;\n")
    (folder / "switch.cpp").write_text('#include <cstdlib>\nextern const int mutant_at_work;\n'
                                       'const int mutant_at_work = std::atoi(std::getenv("MUTANT"));\n')
    suffix = "pch" if "clang" in compiler else "gch"
    for command in (["-O0", "-x", "c++-header", folder / "outside.hpp", "-o", folder / f"outside.hpp.{suffix}"],
                    ["-c", folder / "switch.cpp", "-o", folder / "switch.o"],
                    ["-c", ROOT / "tests/main.cpp", "-o", folder / "main.o"]):
        subprocess.run([compiler, "-std=c++20", *map(str, command)], check=True)


def explained():
    lines = EXPLAINED.read_text(encoding="utf-8").splitlines() if EXPLAINED.exists() else []
    pairs = [line.split("  # ", 1) for line in lines if line and not line.startswith("#")]
    return {name: reason for name, reason in pairs}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--compiler", default=shutil.which("clang++-14") or "g++")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()

    mutants = {name: m for name, m in all_mutants().items() if re.search(arguments.only, name)}
    known = explained()
    complete = not arguments.only and not arguments.sample
    if arguments.sample:
        noticed = sorted(set(mutants) - set(known))
        mutants = {name: mutants[name] for name in random.Random(1).sample(noticed, arguments.sample)}
    if arguments.list:
        print("\n".join(mutants))
        return 0

    faults, count = [], {}
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(arguments.jobs) as pool:
        folder = Path(temporary)
        prepare(arguments.compiler, folder)
        workshops = Queue()
        for n in range(arguments.jobs):
            (folder / str(n)).mkdir()
            workshops.put(Workshop(arguments.compiler, folder / str(n), folder))

        switched = [name for name, mutant in mutants.items() if mutant.switched]
        workshop = workshops.get()
        programs = workshop.build_switched([mutants[name] for name in switched])
        for test, program in programs.items():
            if program is None or not passes(program):
                return f"{test} fails without any mistake"

        def judge(name):
            if mutants[name].switched:
                number = switched.index(name) + 1
                for test, program in programs.items():
                    if not passes(program, number):
                        return name, test
            workshop = workshops.get()
            said = workshop.notices(mutants[name])
            workshops.put(workshop)
            return name, said

        programs = {test: program.rename(folder / test) for test, program in programs.items()}
        workshops.put(workshop)
        for name, said in pool.map(judge, mutants):
            print(f"{said or 'SURVIVES'}: {name}", flush=True)
            count[said] = count.get(said, 0) + 1
            if said is None and name not in known:
                faults.append(f"survives: {name}")
            if said is not None and name in known:
                faults.append(f"does not survive, and {EXPLAINED.name} says it does: {name}")
    if complete:
        faults += [f"{EXPLAINED.name} has, and there is not: {name}" for name in known if name not in mutants]
    print(f"{len(mutants)} mutants:", ", ".join(f"{n} {said or 'survive'}" for said, n in sorted(
        count.items(), key=lambda entry: -entry[1])))
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
