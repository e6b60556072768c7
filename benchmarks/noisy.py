"""Tests what tune keeps while another program uses the cores in bursts. All processes are real.

The demonstration is tuned ten times during bursts of load, each time with other bursts, and once on the quiet machine.
Then each recipe is raced against the unchanged script on the quiet machine. Ten more tunings during bursts may only try
a technique that changes nothing. Rows are stored, so an interrupted benchmark continues. Writes
benchmarks/results/noisy.md.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import bursts
import tune_useless
from intervals import Interval, binomial_interval
from page import machine, store_page
from races import Races
from recipes import parse_recipe, written
from rows import PACKAGE, Row, Rows, judged, table
from slipstream.records import Recipe
from slipstream.supervise.signals import ended_by_signals
from slipstream.testing import demo
from tunings import SLIPSTREAM, beside, last_tuning, raced_share, run

TUNINGS = 10
LEAST_SHARE = 0.8  # Least share of the quiet gain that a recipe must be worth
LEAST_KEEPING = 9  # Least number of tunings that must keep such a recipe
NUM_IMAGES = 640  # Number of images, as in `make demo`
CHECK_S = 10.0
QUIET = "quiet"
DEMO = PACKAGE / "testing" / "demo.py"


def tune_demo(place: Path, seed: int | None) -> Row:
    """Tunes the demonstration as a user does. `seed` is the seed of the bursts; None: without bursts."""
    with _fresh(place) as folder, _load(seed, folder):
        seconds = run([*SLIPSTREAM, "tune", "--quiet", "--seconds", str(CHECK_S), "train.py"], folder)
        tuning = last_tuning(folder)
    total = asdict(Interval(tuning.total.ratio, tuning.total.low, tuning.total.high)) if tuning.total else None
    return {"recipe": written(tuning.recipe), "total": total, "seconds": seconds, "raced": raced_share(tuning)}


def tune_nothing(place: Path, seed: int) -> Row:
    """Tunes the demonstration with one technique, which has several settings and changes nothing."""
    with _fresh(place) as folder, _load(seed, folder):
        result = folder / "recipe.txt"
        seconds = run([sys.executable, *tune_useless.command(CHECK_S, seed, result, "train.py")], folder)
        return {"recipe": result.read_text(), "seconds": seconds}


@contextlib.contextmanager
def _fresh(place: Path) -> Iterator[Path]:
    """Yields a copy of the demonstration, for which nothing is cached."""
    with tempfile.TemporaryDirectory(dir=place) as name:
        yield Path(shutil.copytree(place / "demo", Path(name) / "demo"))


def _load(seed: int | None, folder: Path) -> contextlib.AbstractContextManager[object]:
    return contextlib.nullcontext() if seed is None else beside(bursts.command(seed), folder)


def add_worth(rows: Rows, key: str, place: Path) -> None:
    """Races the recipe of a tuning on the quiet machine against the unchanged script."""
    script, files = [str(place / "demo" / "train.py")], [DEMO]
    recipe = parse_recipe(rows.stored([key])[key]["recipe"])
    rows.extend(key, worth=asdict(Races().ratio("demo", script, files, Recipe(), recipe, "optimizer")))


def share_of(row: Row, quiet: Row | None) -> Interval | None:
    """The share of the quiet gain that a recipe is worth; None if there is no quiet gain, or no race of the recipe.

    The uncertainty of the quiet gain is ignored.
    """
    gain = quiet["worth"]["middle"] - 1 if quiet is not None else 0.0
    if gain <= 0.0 or "worth" not in row:
        return None
    return Interval(*((row["worth"][bound] - 1) / gain for bound in ("middle", "low", "high")))


def render(rows: dict[str, Row], number: int, head: str) -> tuple[str, bool]:
    """The page, and whether no threshold is missed."""
    raced = {key: row for key, row in rows.items() if "worth" in row}
    quiet, lines, num_keeping = raced.get(QUIET), list[list[str]](), 0
    for key, row in rows.items():
        words = [key, row["recipe"] or "nothing", f"{row['seconds']:.0f} s", _raced(row)]
        words += [_ratio(row.get("total")), _ratio(row.get("worth"))]
        share = share_of(row, quiet)
        num_keeping += key != QUIET and share is not None and share.high >= LEAST_SHARE and bool(row["recipe"])
        words.append(f"{share.middle:.0%} ({share.low:.0%} to {share.high:.0%})" if share is not None else "")
        lines.append([*words, row["commit"], row["day"], row["processor"]])
    num_raced = len(raced) - (quiet is not None)
    fooled = [key for key, row in rows.items() if key.startswith("nothing") and row["recipe"]]
    num_useless = sum(key.startswith("nothing") for key in rows)
    keeping = binomial_interval(num_keeping, num_raced)
    is_kept = num_keeping >= LEAST_KEEPING * num_raced / number
    is_missed = keeping.high < LEAST_KEEPING / number
    titles = ["tuning", "recipe", "time:", "techniques raced:", "total of tune:", "worth when quiet:"]
    titles += ["of the quiet gain:", "commit", "day", "on"]
    page = f"""# Beside other work

{head}

{table(titles, lines)}

- {num_keeping} of {num_raced} tunings beside bursts keep a recipe that is worth at least {LEAST_SHARE:.0%} of the quiet
  gain. Required: {LEAST_KEEPING} of {number}: {judged(is_kept, is_missed)}.
- {len(fooled)} of {num_useless} tunings that may only try a technique that changes nothing keep this technique.
  Required: none: {judged(not fooled)}.

A burst is another program that keeps one or both cores busy for 1 to 60 seconds; there is one 30% of the time
(`benchmarks/bursts.py`). *Worth when quiet*: pairs of new processes with the recipe and without it, in turns, after the
tunings and without bursts. A recipe counts unless the whole interval of its worth is below the threshold.
"""
    return page, not is_missed and not fooled


def _raced(row: Row) -> str:
    return f"{row['raced'][0]} of {row['raced'][1]}" if "raced" in row else ""


def _ratio(ratio: dict[str, float] | None) -> str:
    return f"{ratio['middle']:.2f}x ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tunings", type=int, default=TUNINGS, help="tunings of each kind")
    options = parser.parse_args()
    head, rows, number, is_right = machine(), Rows("noisy"), options.tunings, True
    runs: dict[str, Callable[[Path], Row]] = {QUIET: partial(tune_demo, seed=None)}
    runs |= {f"bursts, seed {seed}": partial(tune_demo, seed=seed) for seed in range(number)}
    runs |= {f"nothing, seed {seed}": partial(tune_nothing, seed=number + seed) for seed in range(number)}
    with tempfile.TemporaryDirectory() as name, ended_by_signals():
        place = Path(name)
        demo.write(place / "demo", NUM_IMAGES)
        for key, measure in runs.items():
            rows.measure(key, partial(measure, place), DEMO, tune_useless.USELESS)
            if not key.startswith("nothing"):
                add_worth(rows, key, place)
            page, is_right = render(rows.stored(runs), number, head)
            store_page("noisy", page)
    if not is_right:
        sys.exit("A threshold of noisy.md is missed.")


if __name__ == "__main__":
    main()
