"""Compares two sessions of different times: what changed, and whether the difference of the step times exceeds the
noise.

The comparison cannot tell a change of the script from a change of the machine's speed between the sessions. A change of
the machine's speed affects all trials of `tune` alike, because these trials take turns. The comparison draws no
conclusion from fewer than eight groups of undisturbed steps, or if the load of other programs can explain the
difference. A group has at least as many steps as the script has workers."""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from math import ceil
from pathlib import PurePath
from statistics import fmean, median

from slipstream.diagnose.notes import is_short_of_cores, load_note
from slipstream.diagnose.speedtest_ranges import is_busy
from slipstream.diagnose.steps.selection import num_workers
from slipstream.diagnose.steps.undisturbed import FEWEST_STEPS, counted_steps, foreign_cores_during
from slipstream.numbers import plural
from slipstream.records import (
    PHASES,
    BusySession,
    Difference,
    Environment,
    FewSteps,
    Outcome,
    PhaseChange,
    Session,
    SessionComparison,
    Step,
)

NUM_DRAWS = 600
MOST_UNITS = 240  # per session; with more steps, neighbours are averaged, because medians of more units add nothing
# Step times within 2% of each other count as equal, whatever the interval is, because two starts never agree better.
NEGLIGIBLE = 0.02

Unit = dict[str, float]  # "step" and phases to ms, averaged over neighbouring steps


def compare(before: Session, after: Session, names: tuple[str, str] = ("before", "after")) -> SessionComparison:
    differences = list(changes(before, after))
    is_same = _is_same_machine(before.environment, after.environment)
    if before.summary is None or after.summary is None:
        missing = " and ".join(name for name, one in zip(names, (before, after), strict=True) if one.summary is None)
        note = f"No step was seen in {missing}, so only the settings and the machine can be compared."
        return SessionComparison(*names, "unknown", differences, is_same_machine=is_same, notes=[note])
    draws = _draws(units_of(before), units_of(after))
    ratio = before.summary.step_ms / after.summary.step_ms
    low, high = _interval([old["step"] / new["step"] for old, new in draws], ratio)
    pairs = list(zip(names, (before, after), strict=True))
    few = [each for each in (_few(one, name) for name, one in pairs) if each is not None]
    busy = [each for each in (_busy(one, name) for name, one in pairs) if each is not None]
    outcome = _outcome(ratio, low, high)
    if outcome != "same" and not busy:
        busy = list(_more_load(before, after, names, ratio))
    return SessionComparison(
        *names,
        "unsure" if few or busy else outcome,
        differences,
        before.summary.step_ms,
        after.summary.step_ms,
        ratio,
        low,
        high,
        list(_phases(before, after, draws)),
        is_same,
        list(_notes(before, after, names)),
        busy,
        few,
    )


def _outcome(ratio: float, low: float, high: float) -> Outcome:
    if abs(ratio - 1) < NEGLIGIBLE or low <= 1 <= high:
        return "same"
    return "faster" if ratio > 1 else "slower"


def changes(before: Session, after: Session) -> Iterator[Difference]:
    """Yields the differences, the most likely causes first."""
    for name, old, new in [
        ("script", _script(before), _script(after)),
        ("arguments", _arguments(before), _arguments(after)),
        ("commit", str(before.revision or ""), str(after.revision or "")),
        ("command", before.command, after.command),
        ("recipe kept", _recipe(before), _recipe(after)),
        *_subjects(before, after),
        *_surroundings(before.environment, after.environment),
    ]:
        if old != new:
            yield Difference(name, old or "none", new or "none")


def _script(session: Session) -> str:
    words = session.script
    return shlex.join(words[:2] if words[:1] == ["-m"] else words[:1])


def _arguments(session: Session) -> str:
    words = session.script
    return shlex.join(words[2:] if words[:1] == ["-m"] else words[1:])


def _recipe(session: Session) -> str:
    return str(session.tuning.recipe) if session.tuning and session.tuning.recipe.choices else ""


def _subjects(before: Session, after: Session) -> Iterator[tuple[str, str, str]]:
    for one, other in zip(before.loaders[:3], after.loaders[:3], strict=False):
        place = PurePath(one.site.file).name + f":{one.site.line} " if one.site else ""
        for field in ("num_workers", "batch_size", "prefetch_factor", "persistent_workers", "pin_memory"):
            yield f"{place}{field}", str(getattr(one, field)), str(getattr(other, field))
    for first, second in zip(before.models[:1], after.models[:1], strict=False):
        yield "parameters", f"{first.num_parameters:,}", f"{second.num_parameters:,}"
        yield "model on", first.device, second.device
    if before.footprints and after.footprints:
        old, new = before.footprints[0], after.footprints[0]
        yield "peak memory of a step", f"{old.peak_bytes / 1e6:,.1f} MB", f"{new.peak_bytes / 1e6:,.1f} MB"
        yield "batch observed", str(old.batch_size), str(new.batch_size)


def _surroundings(before: Environment, after: Environment) -> Iterator[tuple[str, str, str]]:
    for field, name in {"cpu": "CPU", "num_usable": "usable cores", "system": "system", "python": "Python"}.items():
        yield name, str(getattr(before, field)), str(getattr(after, field))
    yield "GPUs", ", ".join(gpu.name for gpu in before.gpus), ", ".join(gpu.name for gpu in after.gpus)
    old, new = before.torch, after.torch
    for field in ("version", "device", "num_threads", "matmul_precision", "cudnn_benchmark", "deterministic"):
        name = "torch" if field == "version" else f"torch {field}"
        yield name, str(getattr(old, field, "")), str(getattr(new, field, ""))
    for library in sorted(before.libraries.keys() | after.libraries.keys()):
        yield library, before.libraries.get(library, ""), after.libraries.get(library, "")
    for variable in sorted(before.variables.keys() | after.variables.keys()):
        yield variable, before.variables.get(variable, ""), after.variables.get(variable, "")
    yield "slipstream", before.slipstream, after.slipstream


def _is_same_machine(before: Environment, after: Environment) -> bool:
    def machine(one: Environment) -> tuple[str, float, int, list[str]]:
        return one.cpu, one.num_usable, one.memory_bytes >> 30, [gpu.name for gpu in one.gpus]

    return machine(before) == machine(after)


def _notes(before: Session, after: Session, names: tuple[str, str]) -> Iterator[str]:
    if _script(before) != _script(after):
        yield "These are two different scripts."
    per_step = [round(one.summary.samples_per_step) if one.summary else 0 for one in (before, after)]
    if per_step[0] != per_step[1]:
        samples = plural(per_step[0], "sample")
        yield f"A step had {samples} before and {per_step[1]:,} after: step times are not comparable."
    for name, session in zip(names, (before, after), strict=True):
        if session.summary is not None and (note := load_note(session.summary)):
            yield f"{name}: {note}"


def _few(session: Session, name: str) -> FewSteps | None:
    num_groups = sum(map(len, units_of(session)))
    if session.summary is not None and session.summary.num_undisturbed == 0:
        num_groups = 0
    return FewSteps(name, num_groups, _group_size(session)) if num_groups < FEWEST_STEPS else None


def _busy(session: Session, name: str) -> BusySession | None:
    """Returns the load that the system reported, if this load is high and the session has no measurement of other
    programs. Sessions from some systems and from old versions lack this measurement. In sessions that have it,
    disturbed steps are left out instead."""
    if session.foreign_load:
        return None
    load, cores = session.environment.load, session.environment.num_usable
    if session.summary is not None and is_short_of_cores(session, session.summary):
        return BusySession(name, "during", load, cores)
    return BusySession(name, "at_start", load, cores) if is_busy(session.environment) else None


def _more_load(before: Session, after: Session, names: tuple[str, str], ratio: float) -> Iterator[BusySession]:
    """Yields the slower session if the load of other programs during its undisturbed steps can explain the difference
    except for a negligible rest. The load explains as much as the share of the cores that it used."""
    if not before.foreign_load or not after.foreign_load:
        return
    loads = [foreign_cores_during(one, _steps(one)) for one in (before, after)]
    slower = 0 if ratio > 1 else 1
    more, cores = loads[slower] - loads[1 - slower], (before, after)[slower].environment.num_usable
    if more > 0 and max(ratio, 1 / ratio) * (1 - more / cores) < 1 + NEGLIGIBLE:
        yield BusySession(names[slower], "more", more, cores)


def units_of(session: Session) -> list[list[Unit]]:
    """Returns the undisturbed steps of each block, in averaged groups of neighbours. A group has at least as many steps
    as there are workers, because with k workers every k-th step waits for all workers. If all steps were disturbed, all
    steps are used."""
    steps = _steps(session)
    size = max(_group_size(session), ceil(len(steps) / MOST_UNITS))
    blocks = [list(members) for _, members in groupby(steps, key=lambda step: step.block)]
    cut = [[block[at : at + size] for at in range(0, len(block) - size + 1, size)] for block in blocks]
    whole = [[_unit(members) for members in block] for block in cut if block]
    return whole or ([[_unit(steps)]] if steps else [])


def _steps(session: Session) -> list[Step]:
    """Returns the steps that the summary is computed from."""
    steps = counted_steps(session)
    return [step for step in steps if not step.is_first_of_epoch] or steps


def _group_size(session: Session) -> int:
    return max(1, num_workers(session))


def _unit(steps: Sequence[Step]) -> Unit:
    phases: Unit = {phase: fmean(step.phases.get(phase, 0.0) for step in steps) for phase in PHASES}
    return {"step": fmean(step.step_ms for step in steps), **phases}


def _draws(before: list[list[Unit]], after: list[list[Unit]]) -> list[tuple[Unit, Unit]]:
    """Returns resampled medians of both sessions. The same sessions always give the same draws."""
    generator = random.Random(0)
    return [(_redrawn(before, generator), _redrawn(after, generator)) for _ in range(NUM_DRAWS)]


def _redrawn(blocks: list[list[Unit]], generator: random.Random) -> Unit:
    """Returns the medians of one draw of a block bootstrap. It draws blocks with replacement, and from each drawn block
    sequences of neighbouring steps.

    The reason is that neighbouring steps are correlated, and that blocks far apart show changes of the machine's speed.
    """
    drawn: list[Unit] = []
    for _ in blocks:
        block = generator.choice(blocks)
        length = max(1, round(len(block) ** 0.5))
        taken: list[Unit] = []
        while len(taken) < len(block):
            at = generator.randrange(len(block))
            taken += [block[(at + offset) % len(block)] for offset in range(length)]
        drawn += taken[: len(block)]
    return {name: median(unit[name] for unit in drawn) for name in ("step", *PHASES)}


def _interval(values: Sequence[float], middle: float) -> tuple[float, float]:
    """Returns the 95% interval, extended so that it contains the estimate."""
    ordered = sorted(values)
    at = int(len(ordered) * 0.025)
    return min(ordered[at], middle), max(ordered[-1 - at], middle)


def _phases(before: Session, after: Session, draws: list[tuple[Unit, Unit]]) -> Iterator[PhaseChange]:
    assert before.summary is not None and after.summary is not None
    for phase in PHASES:
        old, new = before.summary.phases.get(phase, 0.0), after.summary.phases.get(phase, 0.0)
        if max(old, new) > 0:
            low, high = _interval([there[phase] - here[phase] for here, there in draws], new - old)
            yield PhaseChange(phase, old, new, low, high)
