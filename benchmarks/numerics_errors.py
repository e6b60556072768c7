"""Tests how often the numerics check rejects a sound technique, and how often it misses a planted fault.

Runs training scripts as real trials: the unchanged script, its controls, every sound technique that applies, and every
fault of planted_faults/techniques/planted.py. Each trial is saved in .slipstream/numerics_errors, so an interrupted
benchmark continues where it stopped. With --judge the saved trials are judged again, for example by changed rules.
--public adds training repositories that are not part of this one. Each folder holds a file `scripts.json` that lists
the commands, as public_scripts/prepare.py writes it. Writes benchmarks/results/numerics_errors.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from numerics_page import render
from numerics_rows import Row, row_of
from numerics_trials import Script, measure
from page import RESULTS, machine, write_page

HERE = Path(__file__).parent
ROOT = HERE.parent
ZOO = ROOT / "src" / "slipstream" / "testing" / "zoo"
SAVED = ROOT / ".slipstream" / "numerics_errors"
ROWS = RESULTS / "numerics_errors.json"
# The trainings of the zoo that differ from each other in their mathematics and have short steps.
FROM_ZOO = ("healthy_convnet", "healthy_gan", "healthy_mlp", "odd_accumulation", "odd_critic", "odd_reinforcement")
# The scripts on which `compile` is tried. Compiling takes up to a minute for each script.
COMPILED = ("convnet_norm", "grad_scaler", "regression", "tied_weights")


def scripts(public: list[Path]) -> list[Script]:
    found = [
        Script(path.stem, [str(path)], str(path.parent))
        for path in sorted((HERE / "workloads" / "numerics").glob("*.py"))
    ]
    found += [Script(f"zoo_{name}", [str(ZOO / f"{name}.py"), "--steps", "200"], str(ROOT)) for name in FROM_ZOO]
    found += [
        Script(f"workload_{name}", [str(HERE / "workloads" / f"{name}.py")], str(ROOT))
        for name in ("language", "tabular")
    ]
    for folder in public:
        for one in json.loads((folder / "scripts.json").read_text()):
            variables = {
                name: value.replace("{folder}", str(folder)) for name, value in one.get("variables", {}).items()
            }
            found.append(
                Script(
                    f"public_{one['name']}",
                    one["command"],
                    str(folder / one["folder"]),
                    True,
                    variables,
                    one.get("without", []),
                )
            )
    return [
        one if one.name in COMPILED else msgspec.structs.replace(one, without=[*one.without, "compile"])
        for one in found
    ]


def measure_all(wanted: list[Script], arguments: list[str], num_jobs: int) -> None:
    """Runs each script in a process of its own, because trials are forked from this process and use its directory."""
    waiting, running = list(enumerate(wanted, 1)), dict[subprocess.Popen[bytes], str]()
    while waiting or running:
        while waiting and len(running) < num_jobs:
            number, script = waiting.pop(0)
            told = f"[{number}/{len(wanted)}] "
            command = [sys.executable, __file__, *arguments, "--script", script.name, "--told", told]
            running[subprocess.Popen(command)] = script.name
        time.sleep(0.2)
        for process in [process for process in running if process.poll() is not None]:
            if process.returncode:
                print(f"{running[process]}: the process ended with {process.returncode}", file=sys.stderr)
            del running[process]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="the name of a script; may be repeated")
    parser.add_argument("--public", type=Path, nargs="+", default=[], help="folders with a scripts.json")
    parser.add_argument("--jobs", type=int, default=2, help="scripts that run at the same time")
    parser.add_argument("--judge", action="store_true", help="run no trials; judge the saved ones again")
    parser.add_argument("--saved", type=Path, default=SAVED, help="folder of the trials")
    parser.add_argument("--script", help=argparse.SUPPRESS)
    parser.add_argument("--told", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    public, saved = [folder.resolve() for folder in options.public], options.saved.resolve()
    known = scripts(public)
    if options.script:
        measure(next(script for script in known if script.name == options.script), saved, options.told)
        return
    wanted = [script for script in known if not options.only or script.name in options.only]
    if not options.judge:
        arguments = ["--saved", str(saved)] + (["--public", *map(str, public)] if public else [])
        measure_all(wanted, arguments, options.jobs)
    rows = {row.name: row for row in _saved_rows()}
    for script in wanted:
        if (saved / script.name).is_dir():
            rows[script.name] = row_of(script, saved)
    partial = ROWS.with_suffix(".partial")
    lines = b",\n".join(map(msgspec.json.encode, rows.values()))  # One line for each script
    partial.write_bytes(b"[" + lines + b"]\n")
    os.replace(partial, ROWS)
    write_page("numerics_errors", render(list(rows.values()), machine(), _command(), _commit()))


def _saved_rows() -> list[Row]:
    return msgspec.json.decode(ROWS.read_bytes(), type=list[Row]) if ROWS.exists() else []


def _command() -> str:
    arguments = [argument for argument in sys.argv[1:] if argument != "--judge"]
    return " ".join(["python benchmarks/numerics_errors.py", *arguments])


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
