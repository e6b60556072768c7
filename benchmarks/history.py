"""Measures how long `slipstream history` takes with ten thousand sessions, with its index and without.

Without an index, the command must create it first. The sessions are copies of one synthetic session with different
names. Writes benchmarks/results/history.md.

    python benchmarks/history.py [--sessions 10000]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from page import machine, write_page
from slipstream.diagnose import diagnose
from slipstream.records import Revision
from slipstream.store.sessions import save_session
from slipstream.testing.made_sessions import made_session


def fill(root: Path, number: int) -> int:
    session = msgspec.structs.replace(diagnose(made_session(num_steps=200)), revision=Revision("0" * 40))
    first = save_session(session, root)
    data = msgspec.msgpack.encode(session)
    for index in range(1, number):
        (first.parent / f"20260101T{index:06}-train.msgpack").write_bytes(data)
    return len(data)


def seconds_of(root: Path, *words: str) -> float:
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "slipstream", *words], cwd=root, check=True, stdout=subprocess.DEVNULL, env=os.environ
    )
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=10_000)
    number = parser.parse_args().sessions
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "project")
        root.mkdir()
        os.environ["SLIPSTREAM_CACHE"] = os.path.join(folder, "cache")  # The folder of the index
        size = fill(root, number)
        rows = [("index made from the files", seconds_of(root, "history"))]
        for words in (["history"], ["history", "--limit", "100", "train"], ["history", "--all", "--json"]):
            times = [seconds_of(root, *words) for _ in range(5)]
            rows.append((" ".join(words), statistics.median(times)))
        bare = [seconds_of(root, "--version") for _ in range(5)]
        rows.append(("--version, for comparison", statistics.median(bare)))
    lines = [
        "# history\n",
        f"{machine()}\n",
        f"`slipstream history` with {number:,} sessions of {size / 1000:.0f} kB, whole processes, median of 5.\n",
        "| command | seconds |",
        "|---|---:|",
        *(f"| {name} | {seconds:.2f} |" for name, seconds in rows),
    ]
    write_page("history", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
