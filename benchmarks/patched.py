"""Does the patched source keep the recipe's gain? For every script of the zoo whose cure can be written in source: a
check, the patch, then the original, the original with the recipe, and the patched source run bare, by turns. Also the
numerics check of the patched source, how many lines it changes, and whether patching twice changes nothing. Scripts are
kept as they come (results/patched.json), so an interrupted run goes on. Writes benchmarks/results/patched.md.

All riders have glibc's allocator held to its memory, as on tune's ground: without it two sources that do the same
differ for life by how the heap happens to lie (3.3 million page faults against 0.13 million in 400 steps of the zoo's
no_workers), and that is neither the recipe's doing nor the patch's."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from page import RESULTS, machine, write_page
from slipstream.diagnose.selection import epoch_steps
from slipstream.recipe.source_edits import edits_in
from slipstream.records import BlockTiming, Choice, Recipe, Session, Setting
from slipstream.rewrite.diff import unified
from slipstream.rewrite.finding_edits import cures
from slipstream.rewrite.make_patch import Patch, make_patch
from slipstream.rewrite.source_tree import SourceTree
from slipstream.store.sessions import load_session, newest_first
from slipstream.supervise.race import ProcessBackend, tick_of
from slipstream.techniques._core.catalogue import catalogue, environment_of
from slipstream.techniques.allocator import environment as steady_ground
from slipstream.testing.zoo import HERE
from slipstream.tuning.block_length import BlockPlan, block
from slipstream.tuning.journal import Journal
from slipstream.tuning.options import TuneOptions
from slipstream.tuning.progress import SilentListener
from slipstream.tuning.state import TuningState
from slipstream.tuning.trials import RecipeTrials
from slipstream.verify.confidence_sequence import ConfidenceSequence
from slipstream.workflows.prove_patch import PATCH, Patched, PatchedBackend, numerics_of

KEPT = 0.9  # of the recipe's gain
LEAST = 1.03  # a recipe that gains less here has nothing to keep
STARTS, ROUNDS = 2, 10  # what a process is lucky in it keeps for life: every rider is started twice
KEEPING = RESULTS / "patched.json"


@dataclass(frozen=True)
class Case:
    recipe: dict[str, Setting]  # the known cure; none: the finding itself is written
    seconds: int = 12  # of the check


CASES = {
    "no_workers": Case({"workers": 2}),
    "no_workers_waiting": Case({"workers": 2}),
    "too_few_workers": Case({"workers": 2}),
    "too_many_workers": Case({"workers": 2}),
    "worker_restart": Case({"persistent_workers": True}),
    "slow_transform_alone": Case({"workers": 2}),
    "lightning_no_workers": Case({"workers": 2}),
    "unfused_optimizer": Case({"fused_optimizer": True}),
    "few_threads": Case({"cpu_threads": 2}),
    "many_threads": Case({"cpu_threads": 2}),
    "slow_layout": Case({"channels_last": True}),
    "denormal_tails": Case({"flush_denormals": True}),
    "tiny_operations": Case({"compile": "default"}),
    "no_loader_frame": Case({}),
    "grad_in_evaluation": Case({}, seconds=30),
    "growing_memory": Case({}, seconds=20),
}


def examine(folder: Path, name: str, case: Case, length: tuple[int, int]) -> dict[str, Any]:
    """The session, the patch and the race, in a folder of their own."""
    script = folder / f"{name}.py"
    shutil.copy(HERE / script.name, script)
    command = [sys.executable, "-m", "slipstream", "check", "--quiet", "--seconds", str(case.seconds), script.name]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    session = load_session(next(iter(newest_first(folder))))
    recipe = Recipe(tuple(Choice(name, setting) for name, setting in case.recipe.items()))
    edits = [*edits_in(session, recipe), *cures(session)]
    patch = make_patch(edits, SourceTree(session, script, script))
    lines = unified(patch.files, folder).decode().splitlines()
    changed = [line for line in lines if line[:1] in ("+", "-") and not line.startswith(("+++", "---"))]
    facts = {
        "recipe": str(recipe) if recipe.choices else "",
        "written": sorted({edit.technique for edit in patch.written}),
        "left": sorted({one.edit.technique for one in patch.left}),
        "lines": len(changed),
        "diff": changed,
        "is_same_twice": _is_same_twice(patch, edits, session, script),
    }
    if not patch.files:
        return {**facts, "failure": "nothing was written: " + "; ".join(one.reason for one in patch.left)}
    return {**facts, **race(folder, session, recipe, patch, length)}


def _is_same_twice(patch: Patch, edits: Any, session: Session, script: Path) -> bool:
    """The patched file, patched once more."""
    with tempfile.TemporaryDirectory() as other:
        copy = Path(other) / script.name
        copy.write_bytes(patch.files[0].after if patch.files else script.read_bytes())
        return not make_patch(edits, SourceTree(session, copy, script)).files


def race(folder: Path, session: Session, recipe: Recipe, patch: Patch, length: tuple[int, int]) -> dict[str, Any]:
    def variables(one: Recipe) -> dict[str, str]:
        return {k: v for c in one.choices for k, v in environment_of(c.technique, c.setting).items()}

    files = {str(file.path.absolute()): file.after for file in patch.files}
    known = {**{name: catalogue()[name] for name in catalogue()}, PATCH: Patched(numerics_of(patch.written))}
    os.chdir(folder)  # riders start where the check did
    with ProcessBackend(session.script, tick=tick_of(session), environment_of=variables) as process_backend:
        backend = PatchedBackend(process_backend, files)
        state = TuningState(session, backend, TuneOptions(120.0), SilentListener(), known, Journal("", {}))
        patched = RecipeTrials("candidate", Recipe((Choice(PATCH),)))
        seats = [state.base, *([RecipeTrials("candidate", recipe)] if recipe.choices else []), patched]
        try:
            rounds = ride(state, session, seats, *length)
            if isinstance(rounds, str):
                return {"failure": rounds}
            claim = state.claim(patched.recipe)
            numerics = state.numerics_check.hear(claim, state.pool.record(patched), patched.num_steps)
        finally:
            state.pool.clear()
    peaks = [state.pool.record(seat).peak_bytes / 1e6 for seat in seats]
    return {"rounds": rounds, "numerics": numerics.reason, "is_sound": numerics.is_sound, "peaks_mb": peaks}


def ride(
    state: TuningState, session: Session, seats: list[RecipeTrials], num_starts: int, num_rounds: int
) -> list[list[float]] | str:
    """Seconds a step, of every seat in every round. A string: one of them could not ride, and why."""
    assert session.summary is not None
    steps = epoch_steps(session) or 0.0
    num_steps, lead_in = block(
        BlockPlan(session.summary.step_ms / 1e3, round(steps) if abs(steps - round(steps)) < 0.01 else 0)
    )
    rng, rounds = random.Random(0), list[list[float]]()
    for start in range(num_starts):
        for number in range(num_rounds):
            order = rng.sample(seats, len(seats))
            timings: dict[int, BlockTiming] = {}
            for seat in order:
                timings[id(seat)] = state.pool.run_block(seat, start * num_rounds + number + 1, num_steps, lead_in)
            for seat in seats:
                if timings[id(seat)].failure:
                    return f"{seat.name}: {timings[id(seat)].failure}"
            if not any(timing.is_disturbed or timing.step_s <= 0 for timing in timings.values()):
                rounds.append([timings[id(seat)].step_s for seat in seats])
        if start + 1 < num_starts:
            state.pool.clear()
    return rounds


def gain(rounds: list[list[float]], seat: int) -> float:
    return median(row[0] / row[seat] for row in rounds)


def kept(rounds: list[list[float]]) -> tuple[float, float, float]:
    """The share of what the recipe gains over 1, and where 95 % of redrawn rounds have it."""

    def share(drawn: list[list[float]]) -> float:
        return (gain(drawn, 2) - 1) / max(gain(drawn, 1) - 1, 1e-9)

    rng = random.Random(0)
    drawn = sorted(share(rng.choices(rounds, k=len(rounds))) for _ in range(2000))
    return share(rounds), drawn[50], drawn[-51]


def interval(rounds: list[list[float]], seat: int) -> str:
    comparison = ConfidenceSequence()
    for row in rounds:
        comparison.add_timings(_timing(row[0]), _timing(row[seat]))
    speed = comparison.speed()
    return f"{speed.ratio:.2f}x ({speed.low:.2f} to {speed.high:.2f})"


def _timing(step_s: float) -> BlockTiming:
    return BlockTiming(0, 0, 0, 1, step_s, 0)


def row_of(name: str, result: dict[str, Any]) -> tuple[str, bool]:
    """Its line in the table, and whether it is as it should be."""
    wrote = ", ".join(result["written"])
    tail = f"{result['lines']} | {'yes' if result['is_same_twice'] else '**no**'}"
    if result.get("failure"):
        return f"| {name} | {result['recipe'] or 'finding'} | {result['failure']} | | | | | {tail} |", False
    rounds, numerics, peaks = result["rounds"], result["numerics"], result["peaks_mb"]
    numerics += f" | {peaks[0]:.0f} to {peaks[-1]:.0f} MB"
    is_right = result["is_same_twice"] and result["is_sound"] is not False
    if not result["recipe"]:
        cells = f"finding: {wrote} | | {interval(rounds, 1)} | |"
        return f"| {name} | {cells} {numerics} | {tail} |", is_right
    share, low, high = kept(rounds)
    has_gain = gain(rounds, 1) >= LEAST
    said = f"{share:.0%} ({low:.0%} to {high:.0%})" if has_gain else "the recipe gains nothing here"
    cells = f"{result['recipe']} | {interval(rounds, 1)} | {interval(rounds, 2)} | {said}"
    return f"| {name} | {cells} | {numerics} | {tail} |", is_right and (share >= KEPT or not has_gain)


def render(results: dict[str, dict[str, Any]], head: str) -> tuple[str, list[str]]:
    rows = {name: row_of(name, results[name]) for name in CASES if name in results}
    missing = [name for name in CASES if name not in results]
    wrong = [name for name, (_, is_right) in rows.items() if not is_right]
    table = "\n".join(row for row, _ in rows.values())
    note = f"\nNot run: {', '.join(missing)}.\n" if missing else ""
    return (
        f"# What the patched source keeps\n\n{head}\n\n"
        "| script | recipe | with it | patched, run bare | kept of the gain | numerics of the patched source | "
        "peak memory | lines changed | twice as once |\n|---|---|---:|---:|---:|---|---:|---:|---|\n"
        f"{table}\n{note}\nEach against the script as it is, in rounds by turns, with fresh processes half of the "
        "time. The share is of what the recipe gains over 1, with the interval that redrawing the "
        f"rounds gives. Asked for: at least {KEPT:.0%} of it. A finding has no recipe: it is written alone. All "
        "riders have glibc's allocator held to its memory, as on tune's ground, so that no heap is luckier. Lines "
        "changed are those of the diff that begin with + or -; diffs and rounds are in patched.json.\n",
        wrong,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(CASES), action="append", help="again, even if there is a result")
    parser.add_argument("--starts", type=int, default=STARTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of every start")
    parser.add_argument("--again", action="store_true", help="all of them")
    options = parser.parse_args()
    os.environ.update(steady_ground("huge_pages"))
    stored = json.loads(KEEPING.read_text()) if KEEPING.exists() and not options.again else {"scripts": {}}
    stored["head"] = stored.get("head") if options.only and stored.get("head") else machine()
    for name, case in CASES.items():
        if name not in options.only if options.only else name in stored["scripts"]:
            continue
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            stored["scripts"][name] = examine(Path(place), name, case, (options.starts, options.rounds))
            os.chdir(RESULTS)
        KEEPING.write_text(json.dumps(stored, indent=1) + "\n")
        print(
            f"{name}: {row_of(name, stored['scripts'][name])[0]} in {time.monotonic() - start:.0f} s", file=sys.stderr
        )
    text, wrong = render(stored["scripts"], stored["head"])
    write_page("patched", text)
    if wrong:
        sys.exit(f"Not as asked for: {', '.join(wrong)}.")


if __name__ == "__main__":
    main()
