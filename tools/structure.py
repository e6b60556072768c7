"""Prints how easy the code base is to find one's way in: files per folder, coined words, class names that exist twice,
numeric constants, private functions that are used once, and the modules that each of three commands passes through.

    python tools/structure.py [--words] [--flows]

`--words` lists every line with a coined word. `--flows` runs the three commands on a small script and takes a minute.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(os.environ.get("STRUCTURE_OF", Path(__file__).resolve().parents[1]))  # another checkout can be named
SOURCE = ROOT / "src" / "slipstream"
COINED = (
    *("rider", "twin", "witness", "lap", "heat", "meeting", "contest", "seat", "paddock", "jury", "teller", "lane"),
    *("ledger", "stable", "relay", "rig", "outfit", "crew", "weather", "hoard", "tidings", "handout", "portrait"),
    *("shelf", "parcel", "purse", "dice", "pantry", "whereabouts", "outlook"),
)
_WORD = re.compile(rf"\b({'|'.join(COINED)})(s|es)?\b", re.IGNORECASE)

SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(2048, 64), torch.randn(2048, 1)), batch_size=16, shuffle=True)
for epoch in range(int(sys.argv[1])):
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
RECIPE = "version = 1\n[recipe]\nfused_optimizer = true\nbatched_fetch = true\n"
FLOWS = {
    "check": ["check", "--quiet", "--steps", "60", "train.py", "200"],
    "tune": ["tune", "--quiet", "--seconds", "5", "--budget", "20s", "--only", "fused_optimizer", "train.py", "200"],
    "run with two techniques": ["run", "--recipe", "recipe.toml", "train.py", "3"],
}
# Imported by every Python process of a flow: notes each of our modules when a function in it is called first.
TRACER = """
import atexit, json, os, sys
root, modules = os.environ.get("STRUCTURE_ROOT", ""), {}

def note(frame, event, arg):
    if event == "call" and frame.f_code.co_name != "<module>" and frame.f_code.co_filename.startswith(root):
        modules.setdefault(frame.f_code.co_filename[len(root) + 1 :])

def write():
    sys.setprofile(None)
    with open(os.path.join(os.environ["STRUCTURE_OUT"], f"{os.getpid()}.json"), "w") as file:
        json.dump(list(modules), file)

if root:
    sys.setprofile(note)
    atexit.register(write)
"""


def modules() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if "zoo" not in path.parts]


def files_per_folder() -> collections.Counter[str]:
    return collections.Counter(str(path.parent.relative_to(SOURCE)) for path in modules())


def coined_words() -> Iterator[tuple[str, str]]:
    """Each use, as (word, place)."""
    documents = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "ARCHITECTURE.md"]
    for path in [*modules(), *documents]:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for match in _WORD.finditer(line):
                yield match.group(1).lower(), f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"


def classes_twice() -> dict[str, list[str]]:
    found: dict[str, list[str]] = collections.defaultdict(list)
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(SOURCE)))
    return {name: places for name, places in found.items() if len(places) > 1}


def numeric_constants() -> int:
    """Names in capitals that a module binds to a number."""
    number = 0
    for path in modules():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            value = getattr(node, "value", None)
            if isinstance(value, ast.UnaryOp | ast.BinOp):
                value = next((part for part in ast.walk(value) if isinstance(part, ast.Constant)), None)
            is_number = isinstance(value, ast.Constant) and type(value.value) in (int, float)
            number += sum(name.strip("_").isupper() for name in names) if is_number else 0
    return number


def private_functions() -> tuple[int, int]:
    """How many there are, and how many of them are used once in their module."""
    total = once = 0
    for path in modules():
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and re.match(r"_[a-z]", node.name):
                total += 1
                once += len(re.findall(rf"\b{node.name}\b", text)) == 2
    return total, once


def flow(arguments: list[str]) -> tuple[int, int]:
    """Modules that a command passes through in all its processes, in the order of first use; and how often that order
    returns into a package that it had left."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = folder / "out"
        for made in (out, folder / "site"):
            made.mkdir()
        (folder / "site" / "sitecustomize.py").write_text(TRACER)
        (folder / "train.py").write_text(SCRIPT)
        (folder / "recipe.toml").write_text(RECIPE)
        variables = {"PYTHONPATH": str(folder / "site"), "STRUCTURE_ROOT": str(SOURCE), "STRUCTURE_OUT": str(out)}
        command = [sys.executable, "-m", "slipstream", *arguments]
        subprocess.run(command, cwd=folder, env={**os.environ, **variables}, capture_output=True, timeout=300)
        starts = [json.loads(path.read_text()) for path in sorted(out.iterdir())]
    order = list(dict.fromkeys(module for start in starts for module in start))
    packages = [module.rpartition("/")[0] for module in order]
    visits = [package for at, package in enumerate(packages) if not at or package != packages[at - 1]]
    return len(order), len(visits) - len(set(visits))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", action="store_true", help="list every line with a coined word")
    parser.add_argument("--flows", action="store_true", help="run check, tune and run, and count the modules")
    options = parser.parse_args()
    folders = files_per_folder()
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in modules())
    print(f"modules {len(modules())}, lines {lines:,}")
    print(f"files per folder: median {statistics.median(folders.values()):g}, most {max(folders.values())}")
    print("  " + ", ".join(f"{folder} {number}" for folder, number in folders.most_common(8)))
    words = list(coined_words())
    print(f"coined words in src and docs: {len(words)}")
    print(
        "  " + ", ".join(f"{word} {number}" for word, number in collections.Counter(w for w, _ in words).most_common())
    )
    twice = classes_twice()
    print(
        f"class names that exist twice: {len(twice)}",
        *(f"  {name}: {', '.join(where)}" for name, where in twice.items()),
        sep="\n",
    )
    print(f"numeric constants: {numeric_constants()}")
    total, once = private_functions()
    print(f"private functions: {total}, {100 * total / lines:.1f} in 100 lines; used once: {once} ({once / total:.0%})")
    if options.flows:
        for name, arguments in FLOWS.items():
            hops, returns = flow(arguments)
            print(f"{name}: {hops} modules, {returns} returns into a package")
    if options.words:
        print(*(place for _, place in words), sep="\n")


if __name__ == "__main__":
    main()
