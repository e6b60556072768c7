"""Golden outputs: what the commands printed before the restructuring, as values that must not change.

`CASES` maps the name of a file in `expected/` to a function that makes the value. Write all of them again with

    python tests/golden/commands.py --write

which runs the tests with GOLDEN_WRITE=1, so that the machine looks as it does in the tests (tests/conftest.py). Look at
the diff of `expected/` before you commit it: a changed number is a changed result.

What is compared:

- JSON: the whole document. A string with a space in it is a text: only its numbers are compared.
- Text and HTML: the numbers of the visible text, in order; for text also the number of lines.
- Help: the names of the options.
- A diff, and a recipe file without its comments: every character.
- Simulated tunings and fits: every verdict and every trial.

Floats are equal if they differ by less than one part in 10^9: numpy sums in another order on another CPU.
"""

from __future__ import annotations

import contextlib
import html
import io
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from inputs import (
    SAVED_SESSIONS,
    diagnoses,
    made_sessions,
    simulated_fits,
    simulated_outcomes,
    simulated_tunings,
    written_recipes,
)

from slipstream.cli import main
from slipstream.cli.group import COMMANDS
from slipstream.techniques._core.catalogue import catalogue

HERE = Path(__file__).parent
EXPECTED = HERE / "expected"
WRITE = "GOLDEN_WRITE"
_NUMBER = re.compile(r"(?<![\w.,])[-−]?\d[\d,]*(?:\.\d+)*(?:e[-+]?\d+)?")
_HIDDEN = re.compile(r"<(script|style|title)\b.*?</\1>|<!--.*?-->", re.DOTALL)
_EXACT = re.compile(r"/(diff|lines)/\d+$")  # lines of a file: every character counts, spaces or not
_OPTION = re.compile(r"^ +((?:-\w, )?--?[a-z][a-z-]*)", re.MULTILINE)

Value = dict[str, Any]


def call(*words: str) -> tuple[int, str, str]:
    """Run the command in this process and this directory: its exit code, standard output and standard error."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    code: Any = 0
    with (
        mock.patch.object(sys, "argv", ["slipstream", *words]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ending:
            code = ending.code or 0
    return code, *(stream.buffer.getvalue().decode() for stream in (out, err))


def numbers_in(text: str) -> list[str]:
    """Numbers inside a word (bf16, made_03) are part of its name and are left out."""
    return [number.rstrip(",") for number in _NUMBER.findall(text.replace(os.getcwd(), "."))]


def as_text(*words: str) -> Value:
    code, out, err = call(*words)
    value: Value = {"exit_code": code, "num_lines": len(out.splitlines()), "numbers": numbers_in(out)}
    return value | ({"numbers_on_stderr": numbers_in(err)} if err else {})


def as_html(*words: str) -> Value:
    code, out, _ = call(*words)
    visible = html.unescape(re.sub(r"<[^>]*>", " ", _HIDDEN.sub(" ", out)))
    return {"exit_code": code, "numbers": numbers_in(visible)}


def as_json(*words: str) -> Value:
    code, out, _ = call(*words)
    return {"exit_code": code, "document": json.loads(out.replace(os.getcwd(), "."))}


def as_diff(*words: str) -> Value:
    code, out, err = call(*words)
    return {"exit_code": code, "diff": out.splitlines(), "numbers_on_stderr": numbers_in(err)}


def options() -> Value:
    return {name: _OPTION.findall(call(name, "--help")[1].partition("Options:")[2]) for name in COMMANDS}


def history_json() -> Value:
    """Without the sizes of the files, which depend on the texts in them."""
    value = as_json("history", "--all", "--json")
    for session in value["document"]["sessions"]:
        del session["size_bytes"]
    return value


def techniques() -> Value:
    return {"idents": list(catalogue())} | as_text("techniques")


def technique_cards() -> Value:
    return {name: as_text("techniques", name) for name in catalogue()}


def empty_cache() -> Value:
    """Without its numbers: the only one is the free space on the disk."""
    with mock.patch.dict(os.environ, SLIPSTREAM_CACHE=os.path.join(os.getcwd(), "empty-cache")):
        code, out, _ = call("cache")
    return {"exit_code": code, "num_numbers": len(numbers_in(out))}


def run_with_recipe() -> Value:
    """The losses of a training with a recipe that keeps every bit, beside those of bare python. They depend on the CPU
    and are not written down."""
    Path("losses.py").write_text(_LOSSES, encoding="utf-8")
    Path("losses.toml").write_text(
        "version = 1\n[recipe]\nset_to_none = true\nbatched_fetch = true\n", encoding="utf-8"
    )
    commands = (["losses.py"], ["-m", "slipstream", "run", "--recipe", "losses.toml", "losses.py"])
    bare, tuned = (subprocess.run([sys.executable, *command], capture_output=True, text=True) for command in commands)
    return {
        "exit_codes": [bare.returncode, tuned.returncode],
        "num_losses": len(bare.stdout.splitlines()),
        "are_equal": bare.stdout == tuned.stdout,
        "names_recipe": "set_to_none + batched_fetch" in tuned.stderr,
    }


_RECIPE = """
version = 1
[recipe]
set_to_none = true
batched_fetch = true
"""
_LOSSES = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
points = torch.randn(256, 8)
loader = DataLoader(TensorDataset(points, points.sum(dim=1, keepdim=True)), batch_size=16, shuffle=True)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        print(loss.item())
"""


def _make_cases() -> dict[str, Callable[[], Value]]:
    cases: dict[str, Callable[[], Value]] = {}

    def add(name: str, make: Callable[..., Value], *words: str) -> None:
        assert name not in cases, name
        cases[name] = lambda: make(*words)

    sessions = [*SAVED_SESSIONS, *made_sessions(), "diagnosed-again"]
    for name in sessions:
        add(f"report-{name}", as_text, "report", name)
        add(f"report-{name}-json", as_json, "report", name, "--json", "-")
        add(f"report-{name}-quiet", as_text, "report", name, "--quiet")
        add(f"report-{name}-html", as_html, "report", name, "--html", "-")
    for name in ("tune", "fit", "made-tune", "made-fit", "made-fit-remedies", "made-healthy"):  # a check is refused
        add(f"report-{name}-markdown", as_text, "report", name, "--markdown", "-")
    add("report-made-brief-trace", as_json, "report", "made-brief", "--trace", "-")
    add("report-latest", as_text, "report")
    add("report-nonsense", as_text, "report", "nonsense")
    add("history", as_text, "history", "--all")
    add("history-limited", as_text, "history", "--limit", "3")
    add("history-json", history_json)
    for before, after in (
        ("made-healthy", "made-input-bound"),
        ("made-few-workers", "made-healthy"),
        ("made-healthy", "made-gpu"),
        ("check", "tune"),
    ):
        add(f"compare-{before}-{after}", as_text, "compare", before, after)
        add(f"compare-{before}-{after}-json", as_json, "compare", before, after, "--json")
    tune_file, check_file = (f".slipstream/sessions/{name}.msgpack" for name in ("tune", "check"))
    add("patch-tune", as_diff, "patch", "train.py", "--session", tune_file)
    add("patch-check", as_diff, "patch", "train.py", "--session", check_file)
    add("machine", as_text, "machine", "--last")
    add("machine-json", as_json, "machine", "--last", "--json")
    add("options", options)
    add("techniques", techniques)
    add("techniques-cards", technique_cards)
    add("techniques-nonsense", as_text, "techniques", "nonsense")
    add("cache-empty", empty_cache)
    add("run-with-recipe", run_with_recipe)
    add("written-recipes", written_recipes)
    add("diagnoses", diagnoses)
    add("simulated-tunings", simulated_tunings)
    add("simulated-outcomes", simulated_outcomes)
    add("simulated-fits", simulated_fits)
    return cases


CASES = _make_cases()


def encode(value: Value) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n"


def differences(expected: Any, found: Any, place: str = "") -> list[str]:
    """One line for each value that differs. Both sides have been through JSON."""
    if isinstance(expected, dict) and isinstance(found, dict):
        lines = [f"{place}/{key}: only on one side" for key in expected.keys() ^ found.keys()]
        for key in expected.keys() & found.keys():
            lines += differences(expected[key], found[key], f"{place}/{key}")
        return sorted(lines)
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [line for at, (one, other) in pairs for line in differences(one, other, f"{place}/{at}")]
    return [] if _is_same(expected, found, place) else [f"{place}: {expected!r} became {found!r}"]


def _is_same(expected: Any, found: Any, place: str) -> bool:
    if isinstance(expected, float) and isinstance(found, float):
        return math.isclose(expected, found, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(expected, str) and isinstance(found, str) and " " in expected and not _EXACT.search(place):
        return numbers_in(expected) == numbers_in(found)
    return type(expected) is type(found) and bool(expected == found)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/golden/commands.py --write")
    for path in EXPECTED.glob("*.json"):
        path.unlink()
    os.environ[WRITE] = "1"
    sys.exit(pytest.main([str(HERE / "test_golden.py")]))
