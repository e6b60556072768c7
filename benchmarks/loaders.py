"""Measures how many photographs per second loaders deliver.

Compares the plain DataLoader, slipstream's recipe on the same script, and other loaders that do the same work
(benchmarks/peers). Each contestant is a separate process. The contestants take turns, and the training step leaves the
CPU idle. Writes benchmarks/results/loaders.md.

The other loaders need a separate environment. If it is given, all contestants run in this environment:

    python3 -m venv /tmp/peers && /tmp/peers/bin/pip install -c constraints.txt torch
    apt-get install libavdevice59 libavfilter8 libopencv-dev libturbojpeg0-dev pkg-config    # for SPDL and FFCV
    /tmp/peers/bin/pip install -c constraints.txt -r benchmarks/peers/requirements.txt
    /tmp/peers/bin/pip uninstall -y torchvision    # LitData installs it, and it may not work with this torch
    python benchmarks/loaders.py --peers-python /tmp/peers/bin/python

A loader that cannot be imported is left out, and the page says so.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from page import machine, write_page
from recipes import parse_recipe, variables
from slipstream.supervise.process_control import no_leftovers
from slipstream.testing.photographs import make_photographs
from standings import COPYING, FIRST, LATER, NO_WORKERS, OURS_HANDOVER, PLAIN_HANDOVER, Standings, render
from turns import Contestant, ContestantSpec, say
from warm_files import WarmFiles
from warm_memory import WarmMemory, decoded_bytes

RECIPE = "decode_cache,fast_decode,fast_resize,fast_arrays,workers=2,buffer_reuse"
HANDOVER_RECIPE = "workers=2,buffer_reuse"
PHOTOGRAPHS = Path(__file__).parents[2] / "shared" / "data" / "photos"
BATCH, CORES = 32, 2
WARM, LEAD_IN, TIMED = 4, 3, 8  # Batches before all rounds, before the timed part of a block, and in the timed part
HANDOVER_TIMED = 40
TIMING = 18  # Batches that are reserved for a block, which are more than it contains
STARTING = 3  # Contestants that start at the same time
SLOW_STARTERS = ("ffcv", "ours")  # These contestants start first, because they compile or run an epoch.


def specs(recipe: str) -> list[ContestantSpec]:
    environment = variables(parse_recipe(recipe))
    plain = [
        ContestantSpec(f"DataLoader, {n} worker{'s' * (n > 1)}", "dataloader", {"num_workers": n}) for n in range(1, 5)
    ]
    return [
        ContestantSpec(NO_WORKERS, "dataloader", {"num_workers": 0}),
        *plain,
        ContestantSpec(FIRST, "ours", {"recipe": recipe}, environment=environment),
        ContestantSpec(LATER, "ours", {"recipe": recipe}, environment=environment),
        ContestantSpec("torchdata.nodes, 2 threads, one call per batch", "torchdata"),
        ContestantSpec("grain, 2 threads", "grain"),
        ContestantSpec("SPDL, Pillow in its threads", "spdl", {"decoder": "pillow"}),
        ContestantSpec("LitData, 2 workers", "litdata"),
        ContestantSpec("WebDataset, 2 workers", "webdataset"),
        ContestantSpec("SPDL, its own decoder", "spdl", {"decoder": "ffmpeg"}, has_same_pixels=False),
        ContestantSpec("FFCV, JPEG encoded again", "ffcv", {"mode": "jpg"}, has_same_pixels=False),
        ContestantSpec("FFCV, raw pixels", "ffcv", {"mode": "raw"}, has_same_pixels=False),
    ]


def handovers(recipe: str) -> list[ContestantSpec]:
    environment = variables(parse_recipe(recipe))
    return [
        ContestantSpec(PLAIN_HANDOVER, "ready", {"by": "dataloader"}),
        ContestantSpec(OURS_HANDOVER, "ready", {"by": "recipe", "recipe": recipe}, environment=environment),
        ContestantSpec(COPYING, "ready", {"by": "copy"}),
    ]


def lay_out(source: Path | None, folder: Path, num_images: int) -> str:
    """Makes the files that the first epoch needs for all rounds. They are copies, so that no file is decoded twice."""
    if source is not None:
        paths = sorted(path for path in source.iterdir() if path.suffix.lower() in (".jpg", ".jpeg"))
    else:
        paths = make_photographs(folder.with_name("made"))
    if not paths:
        sys.exit(f"There is no JPEG in {source}.")
    for number in range(num_images):
        path = paths[number % len(paths)]
        (folder / path.stem).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / path.stem / f"{number:05d}.jpg")
    kilobytes = sum(path.stat().st_size for path in paths) / len(paths) / 1000
    kind = "photographs" if source is not None else "made photographs"
    return f"{len(paths)} {kind} of {kilobytes:.0f} KB, in copies: {num_images:,} files"


def race(
    contestants: list[Contestant], num_rounds: int, lead_in: int, timed: int, memory: WarmMemory | None = None
) -> None:
    """Runs rounds of one block per contestant, in random order.

    The contestant that is measured in its first epoch no longer takes part when this epoch is about to end.
    """
    rng = random.Random(0)
    last = BATCH * (count_batches(num_rounds) - TIMING)
    for number in range(1, num_rounds + 1) if contestants else ():
        running = [one for one in contestants if not one.failure]
        running = [one for one in running if one.spec.label != FIRST or one.facts.get("num_images", 0) <= last]
        for contestant in rng.sample(running, len(running)):
            if memory is not None and contestant.spec.label == FIRST:
                memory.give()
            contestant.ask(lead_in, timed)
        os.sync()  # Files that a cache wrote are written to the disk now, and not during another contestant's block.
        timing = ", ".join(f"{c.spec.label} {c.rates[-1]:,.0f}" for c in running if not c.failure)
        say(f"round {number}/{num_rounds}: {timing}")


def start(spec: ContestantSpec, python: str, photographs: Path, folder: Path, num_batches: int) -> Contestant:
    """Starts a contestant and lets it warm up.

    During the warm-up, data are converted and workers start. To measure later epochs, the whole first epoch runs too.
    """
    contestant = Contestant(spec, python, photographs, folder)
    contestant.ask(WARM + (num_batches if spec.label == LATER else 0), 0)
    say(f"{spec.label} is " + (f"left out: {contestant.failure}" if contestant.failure else "ready"))
    return contestant


def start_and_race(
    wanted: list[ContestantSpec], python: str, photographs: Path, folder: Path, num_rounds: int, holds_memory: bool
) -> tuple[list[Contestant], str]:
    """Starts all contestants and races them. Returns the contestants and a remark about memory.

    A few contestants start at the same time, because starts are not timed.
    """
    num_batches = count_batches(num_rounds)
    in_haste = sorted(range(len(wanted)), key=lambda number: wanted[number].peer not in SLOW_STARTERS)
    with ExitStack() as stack:
        with ThreadPoolExecutor(STARTING) as pool:
            asked = {
                number: pool.submit(start, wanted[number], python, photographs, folder / str(number), num_batches)
                for number in in_haste
            }
            for future in asked.values():
                stack.callback(lambda future=future: future.result().close())
        contestants = [asked[number].result() for number in range(len(wanted))]
        memory = None
        if holds_memory and any(one.label == FIRST for one in wanted):
            memory = WarmMemory(folder, num_rounds, decoded_bytes(photographs, BATCH * TIMING))
            stack.callback(memory.close)
        os.sync()
        warm = WarmFiles()  # If contestants did not wait for their turns, the files would also stay in memory.
        say(f"{warm.hold(photographs) + warm.hold(folder):,} files are held in memory")
        is_handover = bool(wanted) and wanted[0].peer == "ready"
        race(contestants, num_rounds, LEAD_IN, HANDOVER_TIMED if is_handover else TIMED, memory)
    return contestants, "" if memory is None else memory.remark


def count_batches(num_rounds: int) -> int:
    """The number of batches in an epoch: enough for all rounds, and for the batches that a loader prefetches."""
    return 2 * WARM + num_rounds * (LEAD_IN + TIMED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, default=PHOTOGRAPHS if PHOTOGRAPHS.is_dir() else None)
    parser.add_argument("--peers-python", default=sys.executable, help="the python of an environment with the peers")
    parser.add_argument("--recipe", default=RECIPE)
    parser.add_argument("--handover-recipe", default=HANDOVER_RECIPE)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--new-memory", action="store_true", help="do not reserve memory for the first epoch")
    parser.add_argument("--only", nargs="+", default=[""], help="only contestants whose name contains one of these")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])  # All contestants inherit the affinity.
    try:
        tables = [specs(options.recipe), handovers(options.handover_recipe)]
    except ValueError as fault:
        sys.exit(f"{parser.prog}: {fault}")
    tables = [[e for e in table if any(word.lower() in e.label.lower() for word in options.only)] for table in tables]
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit("ended")
    )  # The clean-up must run, because many processes are stopped and could not end by themselves.
    head = machine()
    with tempfile.TemporaryDirectory(prefix="loaders-") as name, no_leftovers():
        folder = Path(name)
        say("photographs are copied")
        photographs = folder / "photographs"
        material = lay_out(options.photos, photographs, BATCH * count_batches(options.rounds))
        met = [
            start_and_race(
                table, options.peers_python, photographs, folder / str(number), options.rounds, not options.new_memory
            )
            for number, table in enumerate(tables)
        ]
    standings = Standings(*(contestants for contestants, _ in met))
    write_page("loaders", render(standings, head, material, options, "".join(remark for _, remark in met)))
    missed = [goal.what for goal in standings.goals() if goal.is_met is False]
    if missed:
        sys.exit("Not met: " + "; ".join(missed) + ".")


if __name__ == "__main__":
    main()
