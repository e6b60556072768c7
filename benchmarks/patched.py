"""Tests whether patched source keeps the gain of the recipe.

For every script of the zoo whose remedy can be written in source, the benchmark makes a check and a patch. Then it
races the original, the original with the recipe, and the patched source without slipstream. It also runs the numerics
check on the patched source, counts the changed lines, and tests that a second patch changes nothing. Results are
stored after each script (results/patched.json), so an interrupted benchmark continues. Writes
benchmarks/results/patched.md.

All trials run with an allocator that keeps its memory, as in a tuning. With another allocator, two processes that do
the same work can differ permanently because of the layout of the heap. For example, no_workers had 3.3 million page
faults in 400 steps of one process, and 0.13 million in another. Neither the recipe nor the patch causes such a
difference.
"""

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
from slipstream.diagnose.steps.selection import epoch_steps
from slipstream.recipe.source_edits import edits_in
from slipstream.records import BlockTiming, Choice, Recipe, Session, Setting
from slipstream.report.text.numerics import describe_numerics
from slipstream.rewrite.diff import unified
from slipstream.rewrite.finding_edits import cures
from slipstream.rewrite.make_patch import Patch, make_patch
from slipstream.rewrite.source_tree import SourceTree
from slipstream.store.sessions import load_session, newest_first
from slipstream.supervise.race import ProcessBackend, tick_of
from slipstream.techniques._core.catalogue import catalogue, environment_of
from slipstream.techniques.allocator import environment as allocator_environment
from slipstream.testing.zoo import HERE
from slipstream.tuning.block_length import BlockPlan, block
from slipstream.tuning.journal import Journal
from slipstream.tuning.options import TuneOptions
from slipstream.tuning.progress import SilentListener
from slipstream.tuning.state import TuningState
from slipstream.tuning.trials import RecipeTrials
from slipstream.verify.confidence_sequence import ConfidenceSequence
from slipstream.workflows.prove_patch import PATCH, Patched, PatchedBackend, numerics_of

KEPT = 0.9  # Least share of the recipe's gain that the patch must keep
LEAST = 1.03  # If the recipe gains less on this machine, the patch is not judged.
STARTS, ROUNDS = 2, 10  # Every trial starts twice, because some differences between processes are permanent.
KEEPING = RESULTS / "patched.json"


@dataclass(frozen=True)
class Case:
    recipe: dict[str, Setting]  # The known remedy. If it is empty, the patch fixes the finding itself.
    seconds: int = 12  # Length of the check


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
    """Makes the session and the patch in a separate folder, and races the patch. Returns the facts of the result."""
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
    """Whether patching the patched file again changes nothing."""
    with tempfile.TemporaryDirectory() as other:
        copy = Path(other) / script.name
        copy.write_bytes(patch.files[0].after if patch.files else script.read_bytes())
        return not make_patch(edits, SourceTree(session, copy, script)).files


def race(folder: Path, session: Session, recipe: Recipe, patch: Patch, length: tuple[int, int]) -> dict[str, Any]:
    def variables(one: Recipe) -> dict[str, str]:
        return {k: v for c in one.choices for k, v in environment_of(c.technique, c.setting).items()}

    files = {str(file.path.absolute()): file.after for file in patch.files}
    known = {**{name: catalogue()[name] for name in catalogue()}, PATCH: Patched(numerics_of(patch.written))}
    os.chdir(folder)  # Trials must start in the folder of the check.
    with ProcessBackend(session.script, tick=tick_of(session), environment_of=variables) as process_backend:
        backend = PatchedBackend(process_backend, files)
        state = TuningState(session, backend, TuneOptions(120.0), SilentListener(), known, Journal("", {}))
        patched = RecipeTrials("candidate", Recipe((Choice(PATCH),)))
        contenders = [state.base, *([RecipeTrials("candidate", recipe)] if recipe.choices else []), patched]
        try:
            rounds = run_rounds(state, session, contenders, *length)
            if isinstance(rounds, str):
                return {"failure": rounds}
            claim = state.claim(patched.recipe)
            numerics = state.numerics_check.full_check(claim, state.pool.record(patched), patched.num_steps)
        finally:
            state.pool.clear()
    peaks = [state.pool.record(one).peak_bytes / 1e6 for one in contenders]
    return {"rounds": rounds, "numerics": describe_numerics(numerics), "is_sound": numerics.is_sound, "peaks_mb": peaks}


def run_rounds(
    state: TuningState, session: Session, contenders: list[RecipeTrials], num_starts: int, num_rounds: int
) -> list[list[float]] | str:
    """Returns the seconds per step of each contender in each round, or the reason if a contender failed."""
    assert session.summary is not None
    steps = epoch_steps(session) or 0.0
    num_steps, lead_in = block(
        BlockPlan(session.summary.step_ms / 1e3, round(steps) if abs(steps - round(steps)) < 0.01 else 0)
    )
    rng, rounds = random.Random(0), list[list[float]]()
    for start in range(num_starts):
        for number in range(num_rounds):
            order = rng.sample(contenders, len(contenders))
            timings: dict[int, BlockTiming] = {}
            for one in order:
                timings[id(one)] = state.pool.run_block(one, start * num_rounds + number + 1, num_steps, lead_in)
            for one in contenders:
                if timings[id(one)].failure:
                    return f"{one.name}: {timings[id(one)].failure}"
            if not any(timing.is_disturbed or timing.step_s <= 0 for timing in timings.values()):
                rounds.append([timings[id(one)].step_s for one in contenders])
        if start + 1 < num_starts:
            state.pool.clear()
    return rounds


def gain(rounds: list[list[float]], column: int) -> float:
    return median(row[0] / row[column] for row in rounds)


def kept(rounds: list[list[float]]) -> tuple[float, float, float]:
    """The share of the recipe's gain above 1 that the patch keeps, with a 95% interval by bootstrap over the rounds."""

    def share(drawn: list[list[float]]) -> float:
        return (gain(drawn, 2) - 1) / max(gain(drawn, 1) - 1, 1e-9)

    rng = random.Random(0)
    drawn = sorted(share(rng.choices(rounds, k=len(rounds))) for _ in range(2000))
    return share(rounds), drawn[50], drawn[-51]


def interval(rounds: list[list[float]], column: int) -> str:
    comparison = ConfidenceSequence()
    for row in rounds:
        comparison.add_timings(_timing(row[0]), _timing(row[column]))
    speed = comparison.speed()
    return f"{speed.ratio:.2f}x ({speed.low:.2f} to {speed.high:.2f})"


def _timing(step_s: float) -> BlockTiming:
    return BlockTiming(0, 0, 0, 1, step_s, 0)


def row_of(name: str, result: dict[str, Any]) -> tuple[str, bool]:
    """The line in the table, and whether the result meets the requirements."""
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
    said = f"{share:.0%} ({low:.0%} to {high:.0%})" if has_gain else "the recipe gains nothing on this machine"
    cells = f"{result['recipe']} | {interval(rounds, 1)} | {interval(rounds, 2)} | {said}"
    return f"| {name} | {cells} | {numerics} | {tail} |", is_right and (share >= KEPT or not has_gain)


def render(results: dict[str, dict[str, Any]], head: str) -> tuple[str, list[str]]:
    rows = {name: row_of(name, results[name]) for name in CASES if name in results}
    missing = [name for name in CASES if name not in results]
    wrong = [name for name, (_, is_right) in rows.items() if not is_right]
    table = "\n".join(row for row, _ in rows.values())
    note = f"\nNot run: {', '.join(missing)}.\n" if missing else ""
    return (
        f"# The gain of patched source\n\n{head}\n\n"
        "| script | recipe | with the recipe | patched, without slipstream | share of the gain | numerics of the "
        "patched source | peak memory | lines changed | second patch changes nothing |\n"
        "|---|---|---:|---:|---:|---|---:|---:|---|\n"
        f"{table}\n{note}\nEach is compared with the script as it is, in rounds. All processes start more than "
        "once. The share is that of the recipe's gain over 1, with a bootstrap interval over the "
        f"rounds. Required: at least {KEPT:.0%}. A finding has no recipe, so only its patch is measured. All "
        "trials run with an allocator that keeps its memory, as in a tuning, so that the layout of the heap makes no "
        "difference. Lines changed are those of the diff that begin with + or -. Diffs and rounds are in "
        "patched.json.\n",
        wrong,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", choices=list(CASES), action="append", help="measure this script again and no other; may be repeated"
    )
    parser.add_argument("--starts", type=int, default=STARTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds after every start")
    parser.add_argument("--again", action="store_true", help="measure all scripts again")
    options = parser.parse_args()
    os.environ.update(allocator_environment("huge_pages"))
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
        sys.exit(f"Not as required: {', '.join(wrong)}.")


if __name__ == "__main__":
    main()
