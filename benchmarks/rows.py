"""The rows of a results page. Each row is stored when it is measured, so an interrupted benchmark continues with the
next row. A row names its commit. It is measured again only if one of its sources has changed: the search, the
statistics, or the files that belong to the row.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from page import RESULTS, processor

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "slipstream"
SEARCH = (PACKAGE / "tuning", PACKAGE / "verify")

Row = dict[str, Any]


class Rows:
    """The stored rows of one page, in results/<name>.json."""

    def __init__(self, name: str, sources: Iterable[Path] = SEARCH) -> None:
        """`sources` are the files and folders on which every row depends. Stored rows without a digest are dropped."""
        self._path = RESULTS / f"{name}.json"
        self._sources = tuple(sources)
        stored = read_json(self._path)
        self._rows: dict[str, Row] = {key: row for key, row in stored.items() if "sources" in row}

    def measure(self, key: str, measure: Callable[[], Row], *files: Path, settings: object = None) -> Row:
        """Returns the stored row, or measures a new one if the sources, these files or the settings have changed."""
        sources = digest((*self._sources, *files), settings)
        if key not in self._rows or self._rows[key]["sources"] != sources:
            commit = commit_name()  # The commit of the code that runs now
            row = measure()
            facts = {"commit": commit, "day": time.strftime("%Y-%m-%d"), "processor": processor(), "sources": sources}
            self._rows[key] = {**row, **facts}
            write_json(self._path, self._rows)
            print(f"{time.strftime('%H:%M:%S')} {key}: {row}", file=sys.stderr, flush=True)
        return self._rows[key]

    def stored(self, keys: Iterable[str]) -> dict[str, Row]:
        """The stored rows with these keys, in this order. Rows of older code are included."""
        return {key: self._rows[key] for key in keys if key in self._rows}

    def extend(self, key: str, **values: object) -> None:
        """Adds values to a row that was measured."""
        self._rows[key] |= values
        write_json(self._path, self._rows)


def read_json(path: Path) -> dict[str, Any]:
    """The stored object; empty if there is no file."""
    stored: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return stored


def write_json(path: Path, value: object) -> None:
    """Writes a JSON file. An interruption never leaves an incomplete file."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    os.replace(partial, path)


def digest(paths: Iterable[Path], settings: object = None) -> str:
    total = hashlib.sha256(repr(settings).encode())
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            total.update(file.name.encode() + b"\0" + file.read_bytes())
    return total.hexdigest()[:16]


def commit_name() -> str:
    """The commit of the code, with a plus sign if files of the code differ from the commit."""
    code = ["src", "benchmarks/*.py", "benchmarks/workloads"]
    is_changed = bool(_git("status", "--porcelain", "--", *code))
    return _git("rev-parse", "--short", "HEAD") + ("+" if is_changed else "")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A Markdown table. Columns whose title ends with a colon are aligned to the right."""
    titles = list(head)
    rule = ["---:" if title.endswith(":") else "---" for title in titles]
    rows = [[title.removesuffix(":") for title in titles], rule, *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def judged(is_met: bool, is_beyond: bool = True) -> str:
    """The word for a threshold. A threshold is missed only if the whole 95% interval of the result is beyond it."""
    if is_met:
        return "met"
    return "**missed**" if is_beyond else "within the interval"
