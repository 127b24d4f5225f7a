#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what no compiler does: who may include whom, what every file begins with, how long it may be, and that the
build knows every file. Usage: check_tree.py [ROOT]. Prints one line per fault; exit status 1 when there is one."""

import re
import sys
from pathlib import Path

# include/shardplan, lowest layer first. A header includes headers of lower layers, and of its own: in a layer marked
# ORDERED those named before it, elsewhere any, without cycles. `rules/` stands for every header of that folder.
LAYERS = [
    ("language", "version text_view meta"),
    ("vocabulary", "axes model models batch methods layout region sequence facts ledger"),
    ("algebra, ORDERED", "parameters module_plan plan plan_words plan_parse plan_text policies mesh mesh_view mesh_algebra pipeline ownership reduction run_shape layer_collectives collectives"),
    ("rules", "question rules/ rules check nearest"),
    ("umbrella", "shardplan"),
    ("people", "text search"),
]
PEOPLE = {"text", "search"}  # outside the umbrella; only these may include heavy headers
LIGHT_STD = set("array bit climits compare concepts cstddef cstdint initializer_list limits numeric string_view"
                " tuple type_traits utility".split())

# runtime/: the folders and files a folder may include, itself and runtime/*.hpp always among them.
RUNTIME = {
    "engine": [],
    "device": [],
    "checkpoint": ["device"],
    "reference": ["checkpoint", "device/gemm.hpp"],
    "sharded": ["engine", "device", "checkpoint"],
    "verify": ["engine", "device", "checkpoint", "reference", "sharded"],
    "cli": ["engine", "device", "checkpoint", "reference", "sharded", "verify"],
}
ENGINE_ON_DEVICE = "engine/nccl"  # the engine that may include device/cuda
NAMES_ENGINES = {"cli"}  # the only folder of runtime/ that may include engine/threads, engine/mpi, ...
PLAN_FREE = {"reference": set("text_view meta model models parameters region".split())}  # all of the core that these may include

CEILING = 350  # lines of a source file outside tests/; 300 is the aim
LONGER = {}    # path: why it may be longer
EXAMPLE_CEILING = 80

SKIPPED = {".git", "single_include", "build", ".cache", "__pycache__", "data"}
SOURCES = {".hpp", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake", ".txt", ".md", ".json", ""}
MACHINE_PATH = re.compile(r"(?<![\w.}$/-])/(?:home|root|work|mnt|Users|tmp)/[\w.]")
URL = re.compile(r"https?://([^/\s\"')>]+)")
HOSTS = {"www.apache.org", "github.com", "huggingface.co", "arxiv.org"}  # what the project may point at

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.M)

faults = []


def fault(path, text):
    faults.append(f"{path}: {text}")


def layer_of(header):
    """(layer, position in it or None when the layer is not ordered) of a header such as `mesh` or `rules/mesh`."""
    for layer, (title, names) in enumerate(LAYERS):
        names = names.split()
        key = header.split("/")[0] + "/" if "/" in header else header
        if key in names:
            return layer, names.index(key) if "ORDERED" in title else None
    return None


def check_core(files):
    graph = {}
    for path, text in files.items():
        if not path.startswith("include/shardplan/"):
            continue
        header = path[len("include/shardplan/"):-len(".hpp")]
        mine = layer_of(header)
        if mine is None:
            fault(path, "has no layer: name it in LAYERS of cmake/check_tree.py")
            continue
        graph[header] = []
        for bracket, included in INCLUDE.findall(text):
            if bracket == '"':
                fault(path, f'"{included}": headers of the library are included as <shardplan/...>')
            elif not included.startswith("shardplan/"):
                if header not in PEOPLE and included not in LIGHT_STD:
                    fault(path, f"<{included}> is not one of the light headers the core may include")
            else:
                other = included[len("shardplan/"):-len(".hpp")]
                graph[header].append(other)
                theirs = layer_of(other)
                if other == "shardplan":
                    fault(path, "only users include the umbrella")
                elif theirs is None or theirs[0] > mine[0]:
                    fault(path, f"<{included}> is of a higher layer")
                elif theirs[0] == mine[0] and None not in (theirs[1], mine[1]) and theirs[1] >= mine[1]:
                    fault(path, f"<{included}> comes later in its layer")
                elif header == "shardplan" and other in PEOPLE:
                    fault(path, f"<{included}> stays outside the umbrella")
    done, open_ = set(), []

    def visit(header):
        if header in open_:
            fault(f"include/shardplan/{header}.hpp", "includes itself by way of " + ", ".join(open_[open_.index(header):]))
        elif header not in done and header in graph:
            open_.append(header)
            for other in graph[header]:
                visit(other)
            done.add(open_.pop())

    for header in graph:
        visit(header)


def check_runtime(files):
    for path, text in files.items():
        if not path.startswith("runtime/") or not path.endswith((".hpp", ".cpp", ".cu", ".cuh")):
            continue
        parts = path.split("/")
        folder = parts[1] if len(parts) > 2 else ""
        if folder and folder not in RUNTIME:
            fault(path, f"runtime/{folder} has no entry in RUNTIME of cmake/check_tree.py")
            continue
        for bracket, included in INCLUDE.findall(text):
            if included.startswith("shardplan/"):
                header = included[len("shardplan/"):-len(".hpp")]
                if folder in PLAN_FREE and header not in PLAN_FREE[folder]:
                    fault(path, f"<{included}>: runtime/{folder} knows no plan and no mesh")
            elif included.startswith("runtime/"):
                target = included[len("runtime/"):]
                theirs = target.split("/")
                if len(theirs) == 1 or parts[1:-1] == theirs[:-1]:
                    continue
                if not folder:
                    fault(path, f'"{included}": runtime/*.hpp include nothing of the folders')
                elif "/".join(parts[1:-1]) == ENGINE_ON_DEVICE and theirs[:2] == ["device", "cuda"]:
                    continue
                elif theirs[0] != folder and not any(target == a or theirs[0] == a for a in RUNTIME[folder]):
                    fault(path, f'"{included}": runtime/{folder} may not include it')
                elif theirs[0] == "engine" and len(theirs) > 2 and folder not in NAMES_ENGINES:
                    fault(path, f'"{included}": only runtime/cli, tests and examples name an engine')
            elif bracket == '"':
                fault(path, f'"{included}": own headers are included by their path from the root')
        check_device_code(path, text)


def check_device_code(path, text):
    """nvcc sees .cu files, and the headers that they can include: the kernels'."""
    seen_by_nvcc = path.startswith("runtime/device/cuda/") and not path.endswith(".cpp")
    for bracket, included in INCLUDE.findall(text):
        if included.endswith(".cuh") and not path.endswith((".cu", ".cuh")):
            fault(path, f'"{included}": only .cu files include a .cuh')
        if seen_by_nvcc and (included.startswith("Eigen/") or included == "doctest/doctest.h"):
            fault(path, f"<{included}>: nvcc warns inside it")
        if path.endswith(".hpp") and seen_by_nvcc and included.startswith(("cuda", "cublas", "nccl")):
            if path != "runtime/device/cuda/error.hpp":
                fault(path, f"<{included}>: headers of the operations compile where there is no CUDA")


def check_form(path, text):
    suffix = Path(path).suffix
    lines = text.split("\n")
    code = suffix in {".hpp", ".cpp", ".cu", ".cuh"}
    if code or suffix in {".py", ".sh", ".cmake"} or path.endswith("CMakeLists.txt") or path == ".ci/run":
        if not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:2]):
            fault(path, "does not begin with its SPDX line")
    if suffix in {".hpp", ".cuh"}:
        inner = path[len("include/shardplan/"):] if path.startswith("include/") else path
        guard = "SHARDPLAN_" + re.sub(r"\W", "_", inner).upper()
        if f"#ifndef {guard}\n#define {guard}\n" not in text:
            fault(path, f"has not the include guard {guard}")
    if code and not text.isascii():
        number = next(n for n, line in enumerate(lines, 1) if not line.isascii())
        fault(f"{path}:{number}", "is not ASCII")
    ceiling = EXAMPLE_CEILING if path.startswith("examples/") and code else CEILING
    if code and not path.startswith("tests/") and len(lines) - 1 > ceiling and path not in LONGER:
        fault(path, f"has {len(lines) - 1} lines, the ceiling is {ceiling}: split it by noun")
    for number, line in enumerate(lines, 1):
        if MACHINE_PATH.search(line):
            fault(f"{path}:{number}", "names a path of one machine")
        for host in URL.findall(line):
            if host not in HOSTS:
                fault(f"{path}:{number}", f"points at {host}, which is not in HOSTS of cmake/check_tree.py")


RULE = re.compile(r"^struct (\w+) \{\n  SHARDPLAN_SENTENCE\((.*?)\);\n(.*?)^\};", re.M | re.S)
RULE_LIST = re.compile(r"^using \w+_rules =\s+list<([^;]*)>;", re.M)


def check_rules(files):
    """Every rule says what must be, is in a list, has a unit test and a place in docs/rules.md, and, if it refuses, a
    case that must not compile and names it."""
    units = "".join(text for path, text in files.items() if path.startswith("tests/unit/"))
    described = set(re.findall(r"^### (\w+)$", files.get("docs/rules.md", ""), re.M))
    for path, text in files.items():
        if not path.startswith("include/shardplan/rules/"):
            continue
        listed = {name for names in RULE_LIST.findall(text) for name in re.findall(r"\w+", names)}
        rules = RULE.findall(text)
        if len(rules) != text.count("SHARDPLAN_SENTENCE("):
            fault(path, "has a rule that does not begin with its sentence")
        for name, sentence, body in rules:
            kind = re.search(r"rule_kind kind = rule_kind::(\w+);", body)
            if not kind:
                fault(path, f"{name} has no kind")
            if "must" not in sentence:
                fault(path, f"the sentence of {name} has no `must`")
            if name not in listed:
                fault(path, f"{name} is in no list of rules")
            if not re.search(rf"\b{name}\b", units):
                fault(path, f"no test in tests/unit names {name}")
            if name not in described:
                fault(path, f"docs/rules.md does not describe {name}: build the target rules_page")
            if kind and kind.group(1) != "advice":
                case = f"tests/compile_fail/{name}.cpp"
                if case not in files:
                    fault(path, f"{name} has no {case}")
                elif not re.search(rf"// expect-error: .*\b{name}\b", files[case]):
                    fault(case, f"does not expect the error {name}")
        described -= {name for name, _, _ in rules}
    for name in sorted(described):
        fault("docs/rules.md", f"describes {name}, which is no rule")


BUILT = {
    "CMakeLists.txt": r"include/shardplan/.*\.hpp",
    "runtime/CMakeLists.txt": r"runtime/(?!device/cuda/).*\.cpp",
    "runtime/device/cuda/CMakeLists.txt": r"runtime/device/cuda/.*\.(cpp|cu)",
    "tests/CMakeLists.txt": r"tests/unit/test_.*\.cpp",
    "tests/bench/CMakeLists.txt": r"tests/bench/.*\.cpp",
    "tests/device/CMakeLists.txt": r"tests/device/.*\.cpp",
    "examples/CMakeLists.txt": r"examples/.*\.cpp",
}


def check_build_lists(files):
    """Every source file is named in the CMakeLists.txt that builds it."""
    for listing, pattern in BUILT.items():
        folder = listing[:-len("CMakeLists.txt")]
        words = set(re.split(r"[\s()]+", re.sub(r"#.*", "", files.get(listing, ""))))
        for path in files:
            if re.fullmatch(pattern, path) and path[len(folder):] not in words:
                fault(listing, f"does not build {path}")


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    files = {}
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        if path.is_file() and not SKIPPED & set(relative.parts) and path.suffix in SOURCES and path.name != "LICENSE":
            files[relative.as_posix()] = path.read_text(encoding="utf-8")
    check_core(files)
    check_runtime(files)
    for path, text in files.items():
        check_form(path, text)
    check_rules(files)
    check_build_lists(files)
    print("\n".join(faults) or f"{len(files)} files, no fault")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
