"""The workflow of `tune --fit` and `tune --memory-limit`.

One trial observes the memory of a step. Further trials run, most of them under the memory limit. The result is one
session. `as_tuning` turns the session's fitting into a tuning, from which the recipe file is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from slipstream.records import Fitting, Session, Speed, Tuning, Verdict
from slipstream.workflows.tune import NothingToTuneError, environment_of, with_trials

if TYPE_CHECKING:
    from slipstream.fit.options import FitOptions
    from slipstream.supervise.check import ProgressLine
    from slipstream.tuning.progress import ProgressListener

_SCHEDULE: Final = "slipstream.memory.schedule:MemorySchedule"
_OBSERVE_S: Final = 60.0
_WARM_UP: Final = 3
_SHARE: Final = 0.9  # share of the free memory; with a larger share the machine may swap or end a process
_UNITS: Final = {
    **{unit: 1024**power for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), 1)},
    **{unit: 1024**power for power, unit in enumerate(("K", "M", "G", "T"), 1)},
    **{unit: 1000**power for power, unit in enumerate(("KB", "MB", "GB", "TB"), 1)},
}


def bytes_of(size: str) -> int:
    """Parses a size such as 6GiB, 512MiB or 1.5GB. A single letter is a binary unit, as in the limits of the system."""
    typed = size.strip().replace(" ", "")
    number = typed.rstrip("BbIiKkMmGgTt")
    unit = {name.lower(): factor for name, factor in _UNITS.items()}.get(typed[len(number) :].lower())
    try:
        value = float(number) * unit if unit is not None else 0.0
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{size!r} is not a size. Write it like 6GiB, 512MiB or 1.5GB.")
    return int(value)


def fit_script(
    script: list[str],
    order: FitOptions,
    tell: ProgressListener,
    *,
    use_overlay: bool = True,
    is_offline: bool = False,
    line: ProgressLine | None = None,
    on_seen: Callable[[Session], None] = lambda session: None,
) -> Session:
    """Finds out what fits, and returns the session with the result.

    If the limit is 0, `with_limit` chooses one. Raises NothingToTuneError if the first trial saw no training and did
    not run out of memory. Raises FitError if there is no solution.
    """
    from slipstream.fit.search import fit
    from slipstream.sandbox.oom_messages import tells_shortage
    from slipstream.supervise.check import CheckOptions, supervise
    from slipstream.supervise.exit_status import exit_code
    from slipstream.supervise.race import ProcessBackend, tick_of

    asked = CheckOptions(
        script,
        seconds=_OBSERVE_S,
        use_overlay=use_overlay,
        is_offline=is_offline,
        command="tune",
        schedule=_SCHEDULE,
    )
    session = supervise(asked, line)
    # The observed script may fail because its batch is too large for the machine. The fit continues in this case.
    has_seen = bool(session.footprints) or tells_shortage(session.ending.message)
    if exit_code(session) and not has_seen:
        raise NothingToTuneError(session)
    on_seen(session)
    process_backend = ProcessBackend(
        session.script,
        tick=tick_of(session) if session.steps else "optimizer",
        environment_of=environment_of,
        use_overlay=use_overlay,
        is_offline=is_offline,
        seed=order.seed,
        warm_up=_WARM_UP,
    )
    with process_backend as backend:
        fitting = fit(session, backend, with_limit(order, session), tell)
    session = msgspec.structs.replace(session, fitting=fitting)
    return with_trials(session, process_backend.notes, process_backend.written, process_backend.no_overlay)


def with_limit(order: FitOptions, session: Session) -> FitOptions:
    """Fills in the limit if the user gave none: the memory of the device, or a share of the free memory on the CPU."""
    if order.limit_bytes:
        return order
    from slipstream.machine.free_memory import free_bytes

    footprint = session.footprints[0] if session.footprints else None
    if footprint is not None and not footprint.device.startswith("cpu") and footprint.capacity_bytes:
        return msgspec.structs.replace(
            order, limit_bytes=footprint.capacity_bytes, limit_source=f"what {footprint.device} has"
        )
    free = int(_SHARE * free_bytes())
    return msgspec.structs.replace(order, limit_bytes=free, limit_source="nine tenths of what is free here")


def as_tuning(fitting: Fitting) -> Tuning:
    """Returns the fitting as a tuning, from which the recipe file is written."""
    base = next((attempt for attempt in fitting.attempts if not attempt.is_held), None)
    kept = [
        attempt
        for attempt in fitting.attempts
        if attempt.outcome == "ran"
        and attempt.is_held
        and (attempt.recipe == fitting.recipe or (not attempt.recipe.choices and attempt.batch_size == fitting.fastest))
    ]
    total: Speed | None = next((attempt.rate for attempt in reversed(kept) if attempt.rate is not None), None)
    return Tuning(
        base_step_ms=(base.step_ms if base is not None else None) or 0.0,
        base_samples_per_s=(base.samples_per_s if base is not None else None) or 0.0,
        verdicts=[
            Verdict(choice.technique, choice.setting, "kept", "fits", speed=total, recipe=fitting.recipe)
            for choice in fitting.recipe.choices
        ],
        total=total,
        recipe=fitting.recipe,
    )
