"""Tunes a script with one technique, which has several settings and changes nothing. Writes the recipe to a file.

noisy.py runs this script in a process of its own, because noisy.py also starts the bursts of load. A tuning counts the
load of its child processes as its own.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import slipstream.techniques
from numerics_trials import ENTRY
from recipes import written
from slipstream.diagnose import diagnose
from slipstream.supervise.check import CheckOptions, supervise
from slipstream.supervise.race import ProcessBackend, tick_of
from slipstream.techniques import nothing
from slipstream.tuning.options import TuneOptions
from slipstream.tuning.progress import SilentListener
from slipstream.tuning.search import tune

PLANTED = Path(ENTRY).parent / "techniques"
USELESS = PLANTED / "useless.py"


def command(seconds: float, seed: int, result: Path, script: str) -> list[str]:
    return [str(Path(__file__)), "--seconds", str(seconds), "--seed", str(seed), "--result", str(result), script]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, required=True, help="length of the check")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("script")
    options = parser.parse_args()
    slipstream.techniques.__path__.append(str(PLANTED))
    known = {"nothing": nothing, "useless": importlib.import_module("slipstream.techniques.useless")}
    session = diagnose(supervise(CheckOptions([options.script], seconds=options.seconds), None))
    with ProcessBackend([options.script], tick=tick_of(session), entry=ENTRY, may_fork=True) as backend:
        tuning = tune(session, backend, TuneOptions(seed=options.seed), SilentListener(), known)
    options.result.write_text(written(tuning.recipe))


if __name__ == "__main__":
    main()
