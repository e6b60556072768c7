"""Measures the share of a tuning that its numerics check takes: controls, proofs, and the comparison of fingerprints.

Each workload is tuned with the code of this tree and, with --before, with the code of another checkout. All tunings use
the Python of this process. Each tuning is a process of its own. Rows are stored, so an interrupted benchmark continues
with the next tuning. Writes benchmarks/results/numerics_time.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from page import machine, write_page
from rows import PACKAGE, ROOT, Row, Rows, digest, table

WORKLOADS = Path(__file__).parent / "workloads"
CHOSEN = ("language", "tabular")
BUDGET_S = 300.0
CHECK_S = 20.0
NUM_TUNINGS = 2  # Tunings of each workload with each code. What a tuning checks depends on which techniques are faster.
# The methods in which NumericsCheck spends all its time
METHODS = ("quick_check", "needs_proof", "full_check", "prove")
CONTROLS = ("rounding", "coarse", "seed", "proof")  # Roles of trials that only the numerics check starts


class Clock:
    """Adds up the time in methods of a class. A call inside another such call is not counted again."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def watch(self, owner: type, name: str) -> None:
        method = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start_s = time.monotonic()
            self._depth += 1
            try:
                return method(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.monotonic() - start_s

        setattr(owner, name, timed)


def tune_one(script: str, budget_s: float, check_s: float) -> Row:
    """Tunes a script in this process, with the code that it imports."""
    from slipstream.supervise.race import ProcessBackend
    from slipstream.tuning.numerics import NumericsCheck
    from slipstream.tuning.options import TuneOptions
    from slipstream.tuning.progress import SilentListener
    from slipstream.workflows.tune import tune_script

    clock, roles = Clock(), Counter[str]()
    for name in METHODS:
        clock.watch(NumericsCheck, name)
    enter, begun_s = ProcessBackend.enter, time.monotonic()

    def counted(self: ProcessBackend, spec: Any) -> Any:
        roles[spec.role] += 1
        return enter(self, spec)

    ProcessBackend.enter = counted  # type: ignore[method-assign]
    session = tune_script([script], TuneOptions(budget_s=budget_s), SilentListener(), check_s=check_s)
    assert session.tuning is not None
    return {
        "seconds": time.monotonic() - begun_s,  # Time of the tuning and of the check before it
        "numerics_s": clock.seconds,
        "controls": {role: roles[role] for role in CONTROLS if roles[role]},
        "recipe": str(session.tuning.recipe),
    }


def measure(checkout: Path, script: Path, budget_s: float, check_s: float) -> Row:
    """Tunes a script with the code of a checkout."""
    command = [sys.executable, __file__, "--tune", str(script), "--budget", str(budget_s), "--check", str(check_s)]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        variables = {**os.environ, "PYTHONPATH": str(checkout / "src")}
        subprocess.run([*command, "--result", str(result)], cwd=folder, env=variables, check=True)
        row: Row = json.loads(result.read_text())
    return row


def name_of(checkout: Path) -> str:
    """The commit of a checkout, with its subject."""
    command = ["git", "log", "-1", "--format=%h (%s)"]
    return subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True).stdout.strip()


def render(rows: dict[str, Row], checkouts: dict[str, Path], budget_s: float) -> str:
    head = ["script", "code", "tuning:", "numerics:", "share:", "controls and proofs", "kept"]
    lines = [
        [
            key.split(",")[0],
            key.split(", ")[1],
            f"{row['seconds']:.0f} s",
            f"{row['numerics_s']:.1f} s",
            f"{row['numerics_s'] / row['seconds']:.1%}",
            ", ".join(f"{number} {role}" for role, number in row["controls"].items()) or "none",
            row["recipe"] or "nothing",
        ]
        for key, row in rows.items()
    ]
    codes = "\n".join(f"- {code}: {name_of(checkout)}" for code, checkout in checkouts.items())
    return f"""# The time that the numerics check adds to a tuning

{machine()}

`slipstream tune` with a budget of {budget_s:g} s. *Numerics* is the time in which the search waited for the numerics
check: the starts and steps of its controls and proofs, and the comparison of fingerprints. The time in which a trial
records its own fingerprint is not part of it.

{codes}

{table(head, lines)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="a checkout of the code to compare with, not in /tmp")
    parser.add_argument("--only", action="append", help="the name of a workload; may be repeated")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds of each tuning")
    parser.add_argument("--check", type=float, default=CHECK_S, help="seconds of the check that precedes it")
    parser.add_argument("--tunings", type=int, default=NUM_TUNINGS, help="tunings of each workload with each code")
    parser.add_argument("--tune", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tune:
        options.result.write_text(json.dumps(tune_one(options.tune, options.budget, options.check)))
        return
    checkouts = {"before": options.before.resolve()} if options.before else {}
    checkouts["now"] = ROOT
    rows, keys = Rows("numerics_time", ()), []
    for workload in options.only or CHOSEN:
        script = WORKLOADS / f"{workload}.py"
        for number in range(options.tunings):
            for code, checkout in checkouts.items():
                keys.append(f"{workload}, {code}, {number + 1}")
                settings = (options.budget, options.check, digest([checkout / "src" / PACKAGE.name]))
                rows.measure(
                    keys[-1],
                    lambda checkout=checkout, script=script: measure(  # type: ignore[misc]
                        checkout, script, options.budget, options.check
                    ),
                    script,
                    settings=settings,
                )
    write_page("numerics_time", render(rows.stored(keys), checkouts, options.budget))


if __name__ == "__main__":
    main()
