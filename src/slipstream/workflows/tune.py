"""The workflow of `slipstream tune` and of `slipstream.tune(function)`: a short check, then the races.

The result is one session. `slipstream.tune(function)` first writes a script that calls the function, because every
trial is a new process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from slipstream.records import NUMERICS, NumericsClass, Recipe, Session, Tuning

if TYPE_CHECKING:
    from slipstream.supervise.check import ProgressLine
    from slipstream.supervise.race import ProcessBackend
    from slipstream.tuning.options import TuneOptions
    from slipstream.tuning.progress import ProgressListener

CHECK_S: Final = 20.0
# This variable is set in the trials of a function. Without it, a module that calls slipstream.tune when it is imported
# would start trials without end.
INSIDE: Final = "SLIPSTREAM_TUNING"
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


class NothingToTuneError(Exception):
    """The check did not see a training that can be raced. `session` is the session of the check."""

    def __init__(self, session: Session) -> None:
        super().__init__("the check saw no training")
        self.session = session


def tune_script(
    script: list[str],
    order: TuneOptions,
    tell: ProgressListener,
    *,
    check_s: float = CHECK_S,
    use_overlay: bool = True,
    is_offline: bool = False,
    line: ProgressLine | None = None,
    on_check: Callable[[Session], None] = lambda session: None,
) -> Session:
    """Checks and tunes a script. Returns the session of the check with the tuning in it.

    `on_check` is called with the session between the check and the races. Raises NothingToTuneError if the check failed
    or saw no training.
    """
    from slipstream.diagnose import diagnose
    from slipstream.supervise.check import CheckOptions, supervise
    from slipstream.supervise.exit_status import exit_code

    session = diagnose(
        supervise(CheckOptions(script, seconds=check_s, use_overlay=use_overlay, is_offline=is_offline), line)
    )
    session = msgspec.structs.replace(session, command="tune")
    if exit_code(session) or session.summary is None:
        raise NothingToTuneError(session)
    on_check(session)
    tuning, backend = _race(session, order, tell, use_overlay, is_offline)
    session = msgspec.structs.replace(session, tuning=tuning)
    return with_trials(session, backend.notes, backend.written, backend.no_overlay)


def with_trials(session: Session, notes: list[str], written: list[str], no_overlay: str = "") -> Session:
    """Returns the session with what the trials of a race reported and left behind.

    `written` are files that trials without an overlay wrote. `no_overlay` says why there was no overlay. What the
    session already lists is not repeated.
    """
    from slipstream.supervise.check import shorten

    paths = [*session.written, *shorten(written, Path(session.cwd))]
    return msgspec.structs.replace(
        session,
        notes=list(dict.fromkeys([*session.notes, *notes])),
        no_overlay=session.no_overlay or no_overlay,
        written=list(dict.fromkeys(paths)),
    )


def _race(
    session: Session, order: TuneOptions, tell: ProgressListener, use_overlay: bool, is_offline: bool
) -> tuple[Tuning, ProcessBackend]:
    """Runs the races. Returns the tuning, and the backend with what the trials reported and left behind."""
    from slipstream.diagnose.steps.selection import is_on_cpu
    from slipstream.supervise.race import ProcessBackend, tick_of
    from slipstream.tuning.search import tune

    process_backend = ProcessBackend(
        session.script,
        tick=tick_of(session),
        environment_of=environment_of,
        use_overlay=use_overlay,
        is_offline=is_offline,
        seed=order.seed,
        may_fork=is_on_cpu(session),
    )
    with process_backend as backend:
        tuning = tune(session, backend, order, tell)
    return tuning, process_backend


def environment_of(recipe: Recipe) -> dict[str, str]:
    """Returns the environment variables that must be set before the process of a trial starts."""
    from slipstream.techniques._core import catalogue

    variables: dict[str, str] = {}
    for choice in recipe.choices:
        variables |= catalogue.environment_of(choice.technique, choice.setting)
    return variables


def seconds_of(duration: str) -> float:
    """Parses a duration: 90s, 5m, 1.5h or a number of seconds."""
    number, unit = (duration[:-1], duration[-1]) if duration[-1:] in _UNITS else (duration, "s")
    try:
        seconds = float(number) * _UNITS[unit]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{duration!r} is not a duration. Write it like 90s, 5m or 1h.")
    return seconds


def check_names(names: Sequence[str]) -> None:
    """Raises ValueError for a technique that does not exist. The message lists the techniques."""
    from slipstream.techniques._core.catalogue import catalogue
    from slipstream.tuning.candidates import CONTROL

    known = [name for name in catalogue() if name != CONTROL]
    for name in names:
        if name not in known:
            raise ValueError(f"there is no technique {name!r}; the techniques are: {', '.join(known)}")


def journal_of(script: Sequence[str], root: Path | None = None) -> Path:
    """Returns the file that stores the progress of a tuning of this script with these arguments."""
    import hashlib

    from slipstream.launch.target import file_stem

    name = "".join(char if char.isalnum() else "-" for char in file_stem(script))
    digest = hashlib.sha256("\0".join(script).encode()).hexdigest()[:12]
    return (root or Path.cwd()) / ".slipstream" / "journals" / f"{name}-{digest}.jsonl"


# --- from a notebook or a program -------------------------------------------------------------------------------------


class Tuned:
    """The result of `slipstream.tune(train)`: `session`, `tuning` and `recipe`. A notebook shows it as a report."""

    def __init__(self, session: Session, script: Path, recipe_path: Path | None) -> None:
        self.session = session
        self.script = script  # the script that the trials ran
        self.recipe_path = recipe_path  # None: nothing was kept

    @property
    def tuning(self) -> Tuning:
        assert self.session.tuning is not None
        return self.session.tuning

    @property
    def recipe(self) -> Recipe:
        return self.tuning.recipe

    def __str__(self) -> str:
        from slipstream.report.terminal.session import render_to_text

        return render_to_text(self.session)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from slipstream.report.notebook import tuning_to_html

        return tuning_to_html(self.session)


def tune_function(
    function: Callable[..., Any],
    *,
    budget: str | float | None = None,
    only: Sequence[str] = (),
    without: Sequence[str] = (),
    allow: NumericsClass = "approximate",
    seconds: float = CHECK_S,
    recipe: str | Path = "slipstream.toml",
    quiet: bool = False,
) -> Tuned:
    """Tunes a function. `slipstream.tune` describes the arguments."""
    from slipstream.recipe.file import write_recipe
    from slipstream.store.sessions import make_folder, save_session
    from slipstream.tuning.options import TuneOptions
    from slipstream.workflows.function_script import write_script

    if os.environ.get(INSIDE):
        raise ValueError(
            "slipstream.tune was called inside a trial of slipstream.tune, because importing the module calls it again."
            ' Put the call under `if __name__ == "__main__":`.'
        )
    if allow not in NUMERICS:
        raise ValueError(f"allow={allow!r} is not a numerics class; the classes are: {', '.join(NUMERICS)}")
    check_names([*only, *without])
    budget_s = seconds_of(str(budget)) if budget is not None else None
    script = write_script(function, make_folder(Path.cwd()) / "functions")
    typed = [os.path.relpath(script)]
    order = TuneOptions(budget_s, tuple(only), tuple(without), allow, str(journal_of(typed)))
    session = _tune_with_progress(typed, order, seconds, quiet)
    save_session(session)
    tuned = Tuned(session, script, None)
    if tuned.recipe.choices:
        tuned.recipe_path = Path(recipe)
        tuned.recipe_path.parent.mkdir(parents=True, exist_ok=True)
        write_recipe(tuned.recipe_path, tuned.tuning, session)
    return tuned


def _tune_with_progress(script: list[str], order: TuneOptions, check_s: float, quiet: bool) -> Session:
    """Tunes, and prints the progress. Raises ValueError if the check failed or the script cannot be raced."""
    from slipstream.report.terminal.live_tune import LiveTune
    from slipstream.report.text.check import verdict
    from slipstream.supervise.exit_status import remark
    from slipstream.supervise.trial_process import RefusalError
    from slipstream.tuning.trials import RaceError

    os.environ[INSIDE] = "1"
    try:
        with LiveTune(sys.stdout, quiet=quiet) as live:
            live.start()
            live.note(f"checking for about {check_s:.0f} s")
            return tune_script(script, order, live, check_s=check_s, on_check=lambda seen: live.note(verdict(seen)))
    except NothingToTuneError as error:
        raise ValueError(remark(error.session) or verdict(error.session)) from None
    except (RefusalError, RaceError) as error:
        raise ValueError(str(error)) from None
    finally:
        del os.environ[INSIDE]
