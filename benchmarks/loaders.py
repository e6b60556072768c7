"""Photographs out of loaders, images per second: DataLoader as it is, slipstream's recipe on the same script, and its
peers doing the same work (benchmarks/peers). Each in a process of its own, by turns, the step an idle processor. Writes
benchmarks/results/loaders.md.

The peers live in an environment of their own, and all contestants run in it when it is given:

    python3 -m venv /tmp/peers && /tmp/peers/bin/pip install -c constraints.txt torch
    apt-get install libavdevice59 libavfilter8 libopencv-dev libturbojpeg0-dev pkg-config    # SPDL's and FFCV's
    /tmp/peers/bin/pip install -c constraints.txt -r benchmarks/peers/requirements.txt
    /tmp/peers/bin/pip uninstall -y torchvision    # LitData pulls it in, and it need not import beside this torch
    python benchmarks/loaders.py --peers-python /tmp/peers/bin/python

A peer that does not import is left out, and the page says so."""

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
from slipstream.supervise.orphans import no_leftovers
from slipstream.testing.photographs import make_photographs
from standings import COPYING, FIRST, LATER, NO_WORKERS, OURS_HANDOVER, PLAIN_HANDOVER, Standings, render
from turns import Contestant, Entrant, say
from warm_files import WarmFiles
from warm_memory import WarmMemory, decoded_bytes

RECIPE = "decode_cache,fast_decode,fast_resize,fast_arrays,workers=2,buffer_reuse"
HANDOVER_RECIPE = "workers=2,buffer_reuse"
PHOTOGRAPHS = Path(__file__).parents[2] / "shared" / "data" / "photos"
BATCH, CORES = 32, 2
WARM, LEAD_IN, TIMED = 4, 3, 8  # batches: before all rounds, before a lap, in a lap
HANDOVER_TIMED = 40
TIMING = 18  # batches, more than a lap has
STARTING = 3  # at once
SLOW_STARTERS = ("ffcv", "ours")  # they compile, or run an epoch first


def specs(recipe: str) -> list[Entrant]:
    environment = variables(parse_recipe(recipe))
    plain = [Entrant(f"DataLoader, {n} worker{'s' * (n > 1)}", "dataloader", {"num_workers": n}) for n in range(1, 5)]
    return [
        Entrant(NO_WORKERS, "dataloader", {"num_workers": 0}),
        *plain,
        Entrant(FIRST, "ours", {"recipe": recipe}, environment=environment),
        Entrant(LATER, "ours", {"recipe": recipe}, environment=environment),
        Entrant("torchdata.nodes, 2 threads, one call per batch", "torchdata"),
        Entrant("grain, 2 threads", "grain"),
        Entrant("SPDL, Pillow in its threads", "spdl", {"decoder": "pillow"}),
        Entrant("LitData, 2 workers", "litdata"),
        Entrant("WebDataset, 2 workers", "webdataset"),
        Entrant("SPDL, its own decoder", "spdl", {"decoder": "ffmpeg"}, has_same_pixels=False),
        Entrant("FFCV, JPEG encoded anew", "ffcv", {"mode": "jpg"}, has_same_pixels=False),
        Entrant("FFCV, raw pixels", "ffcv", {"mode": "raw"}, has_same_pixels=False),
    ]


def handovers(recipe: str) -> list[Entrant]:
    environment = variables(parse_recipe(recipe))
    return [
        Entrant(PLAIN_HANDOVER, "ready", {"by": "dataloader"}),
        Entrant(OURS_HANDOVER, "ready", {"by": "recipe", "recipe": recipe}, environment=environment),
        Entrant(COPYING, "ready", {"by": "copy"}),
    ]


def lay_out(source: Path | None, folder: Path, num_images: int) -> str:
    """As many files as the first epoch needs for all of its rounds: copies, so that each is decoded once only."""
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
    fork_servers: list[Contestant], num_rounds: int, lead_in: int, timed: int, memory: WarmMemory | None = None
) -> None:
    """Rounds of one lap each, in an order that is drawn anew. Who rides the first epoch leaves before it ends."""
    rng = random.Random(0)
    last = BATCH * (count_batches(num_rounds) - TIMING)
    for number in range(1, num_rounds + 1) if fork_servers else ():
        riding = [one for one in fork_servers if not one.failure]
        riding = [one for one in riding if one.spec.label != FIRST or one.facts.get("num_images", 0) <= last]
        for contestant in rng.sample(riding, len(riding)):
            if memory is not None and contestant.spec.label == FIRST:
                memory.give()
            contestant.ask(lead_in, timed)
        os.sync()  # what a cache has written goes to the disk now and not in somebody else's lap
        timing = ", ".join(f"{c.spec.label} {c.rates[-1]:,.0f}" for c in riding if not c.failure)
        say(f"round {number}/{num_rounds}: {timing}")


def start(spec: Entrant, python: str, photographs: Path, folder: Path, num_batches: int) -> Contestant:
    """Starts it and lets it warm up: data are converted, workers come, and for later epochs the first one is run."""
    contestant = Contestant(spec, python, photographs, folder)
    contestant.ask(WARM + (num_batches if spec.label == LATER else 0), 0)
    say(f"{spec.label} is " + (f"left out: {contestant.failure}" if contestant.failure else "ready"))
    return contestant


def meet(
    wanted: list[Entrant], python: str, photographs: Path, folder: Path, num_rounds: int, holds_memory: bool
) -> tuple[list[Contestant], str]:
    """All are started, a few at a time since nothing is timed yet, and then raced. They, and a remark on the memory."""
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
        fork_servers = [asked[number].result() for number in range(len(wanted))]
        memory = None
        if holds_memory and any(one.label == FIRST for one in wanted):
            memory = WarmMemory(folder, num_rounds, decoded_bytes(photographs, BATCH * TIMING))
            stack.callback(memory.close)
        os.sync()
        warm = WarmFiles()  # as they are where nobody waits for a turn
        say(f"{warm.hold(photographs) + warm.hold(folder):,} files are held in memory")
        is_handover = bool(wanted) and wanted[0].peer == "ready"
        race(fork_servers, num_rounds, LEAD_IN, HANDOVER_TIMED if is_handover else TIMED, memory)
    return fork_servers, "" if memory is None else memory.remark


def count_batches(num_rounds: int) -> int:
    """Of an epoch: so many that the first one lasts for all rounds, with what a loader makes ahead."""
    return 2 * WARM + num_rounds * (LEAD_IN + TIMED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, default=PHOTOGRAPHS if PHOTOGRAPHS.is_dir() else None)
    parser.add_argument("--peers-python", default=sys.executable, help="the python of an environment with the peers")
    parser.add_argument("--recipe", default=RECIPE)
    parser.add_argument("--handover-recipe", default=HANDOVER_RECIPE)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--new-memory", action="store_true", help="hold no memory ready for what the first epoch keeps")
    parser.add_argument("--only", nargs="+", default=[""], help="those whose name contains one of these")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])  # and so all contestants
    try:
        tables = [specs(options.recipe), handovers(options.handover_recipe)]
    except ValueError as fault:
        sys.exit(f"{parser.prog}: {fault}")
    tables = [[e for e in table if any(word.lower() in e.label.lower() for word in options.only)] for table in tables]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # through the cleaning up: many stand still
    head = machine()
    with tempfile.TemporaryDirectory(prefix="loaders-") as name, no_leftovers():
        folder = Path(name)
        say("photographs are copied")
        photographs = folder / "photographs"
        material = lay_out(options.photos, photographs, BATCH * count_batches(options.rounds))
        met = [
            meet(table, options.peers_python, photographs, folder / str(number), options.rounds, not options.new_memory)
            for number, table in enumerate(tables)
        ]
    pace_model = Standings(*(fork_servers for fork_servers, _ in met))
    write_page("loaders", render(pace_model, head, material, options, "".join(remark for _, remark in met)))
    missed = [goal.what for goal in pace_model.goals() if goal.is_met is False]
    if missed:
        sys.exit("Not met: " + "; ".join(missed) + ".")


if __name__ == "__main__":
    main()
