"""The life of slipstream in one process of the script, from start to end. The process is observed (check_mode.py),
races (race_mode.py), or, for `run`, gets its recipe and a count of its steps. This module does not import torch before
the script does, and no fault of slipstream reaches the script."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from slipstream.numbers import plural
from slipstream.observe.message_queue import Sink
from slipstream.observe.recorder import Recorder
from slipstream.records import Ended, Ending, Message, Precision, Recipe, Role, Tick, Told
from slipstream.seams.import_hooks import ImportHooks
from slipstream.wire.spool import MemorySink, Spool

if TYPE_CHECKING:
    from slipstream.seams.patching import Patches
    from slipstream.trial.check_mode import CheckMode
    from slipstream.trial.forked import ForkSafety
    from slipstream.trial.hooked_step_counter import HookedStepCounter
    from slipstream.trial.race_mode import RaceMode
    from slipstream.trial.recipe_protocol import AppliedRecipe, ApplyRecipe

_LIBRARIES = (
    "lightning",
    "pytorch_lightning",
    "transformers",
    "keras",
    "accelerate",
    "datasets",
    "torchvision",
    "PIL",
    "numpy",
)


class TrialSettings(msgspec.Struct, frozen=True):
    mode: Literal["check", "run", "watch", "race"]
    num_steps: int = 0
    seconds: float = 60.0
    spool: str = ""
    script: list[str] = []
    schedule: str = ""  # module:class of a schedule that replaces the schedule of `check`
    profile: str = ""  # a file for torch's profile of a few steps or, with `memory`, for torch's memory snapshot
    recipe: Recipe = Recipe()  # for run and race
    # The following fields are only for race.
    role: Role = "base"
    precision: Precision = "fp32"  # for the role `rounding`: the precision whose rounding is added
    draw: int = 0
    baton: str = ""  # a Unix socket
    tick: Tick = "optimizer"
    seed: int = 0
    warm_up: int = 5
    limit_bytes: int = 0  # memory limit for a memory fit; 0: no limit


class ScriptRun:
    """slipstream in one process that runs the script. It holds the recorder, the import hooks and the patches."""

    def __init__(
        self, settings: TrialSettings, apply_recipe: ApplyRecipe | None = None, fork_safety: ForkSafety | None = None
    ) -> None:
        self.settings = settings
        self.apply_recipe = apply_recipe
        self.fork_safety = fork_safety  # only in a process that imported torch before the script did
        self.context: AppliedRecipe | None = None
        self.complaints: list[str] = []
        self._sink: Sink | None = self._make_sink()
        self.recorder = Recorder(self._sink)
        self._mode: CheckMode | RaceMode | None = None
        self.step_counter: HookedStepCounter | None = None
        self.import_hooks = ImportHooks()
        self.patches: Patches | None = None
        self._complained: set[str] = set()
        self._start_ns = self.recorder.clock.now_ns()

    @property
    def messages(self) -> list[tuple[int, Message]]:
        """The recorded messages. They are only available without a spool."""
        assert isinstance(self._sink, MemorySink)
        return [(os.getpid(), message) for message in self._sink.messages]

    def start(self, role: str = "main") -> None:
        """Installs what the mode needs. Call it before the script's first line. `role` is recorded in sessions."""
        self.recorder.report_start(role)
        self._mode = self._make_mode()
        if self._mode is None:
            self.import_hooks.when_imported("torch", self._on_torch)
        else:
            self._mode.start()

    def _make_mode(self) -> CheckMode | RaceMode | None:
        if self.settings.mode == "run":
            return None
        if self.settings.mode == "race":
            from slipstream.trial.race_mode import RaceMode

            return RaceMode(self)
        from slipstream.trial.check_mode import CheckMode

        return CheckMode(self)

    def start_child(self) -> None:
        """Is called in a process that the script forked. The process starts with an empty recorder and keeps the
        inherited seams."""
        self.recorder.forget()
        if self._mode is not None:
            self._mode.start_child()
        self.recorder.report_start("child")

    def leave(self, ending: Ending) -> None:
        """Writes what is still unwritten and undoes all patches."""
        with _undisturbed(self.settings.mode == "check"):
            self._leave(ending)

    def _leave(self, ending: Ending) -> None:
        if self._mode is not None:
            self._mode.leave(ending)
        self.recorder.flush(is_last=True)
        self.recorder.queue.write(Told(libraries=_library_versions()))
        if self.patches is not None:
            self.take_away(self.patches)
        self.import_hooks.close()
        self.recorder.queue.write(Ended(ending))
        self.recorder.queue.close()

    def take_away(self, patches: Patches) -> None:
        """Undoes the patches. A fault here changes neither the script's exit code nor its exception. In a forked
        process the patches stay. Undoing them may change objects that the parent still uses, such as weights in shared
        memory."""
        if patches.process != os.getpid():
            return
        try:
            patches.close()
        except Exception as fault:
            self.complain("leaving", fault)

    def summary_line(self) -> str:
        """Returns the line that `run` prints at the end: steps, seconds and samples."""
        seconds = (self.recorder.clock.now_ns() - self._start_ns) / 1e9
        steps = self.step_counter.total_steps if self.step_counter is not None else 0
        if self.step_counter is None or not steps:
            return f"slipstream: {seconds:.1f} s; no update and no batch was seen, so there was no step to count"
        samples = self.step_counter.count_samples()
        digits = 0 if samples >= 10 * seconds else 1
        rate = f", {samples / seconds:,.{digits}f} samples/s" if samples else ""
        return f"slipstream: {plural(steps, 'step')} in {seconds:.1f} s ({steps / seconds:.1f} steps/s{rate})"

    def excuse(self, ending: Ending) -> Ending:
        return ending if self._mode is None else self._mode.excuse(ending)

    def _on_torch(self, module: ModuleType) -> None:
        try:
            self._install_step_counter(module)
        except Exception as fault:  # an unknown version of torch: the script continues without slipstream
            self.complain("seams", fault)

    def _install_step_counter(self, torch: Any) -> None:
        from slipstream.seams.patching import Patches
        from slipstream.trial.hooked_step_counter import HookedStepCounter

        self.patches = Patches(self.complain, torch.compiler.is_dynamo_compiling)
        if self.apply_recipe is not None and self.settings.recipe.choices:
            self.context = self.apply_recipe(self.settings.recipe, self.patches, self.complain, False)
        self.step_counter = HookedStepCounter()
        self.step_counter.install(self.patches)

    def complain(self, seam: str, fault: BaseException) -> None:
        """Reports a fault of slipstream once for each seam. The caller has disabled the seam."""
        if seam in self._complained:
            return
        self._complained.add(seam)
        sentence = f"the seam '{seam}' was switched off after {type(fault).__name__}: {fault}"
        self.complaints.append(sentence)
        with contextlib.suppress(Exception):
            self.recorder.note(sentence)
            print(f"slipstream: {sentence}; the script continues", file=sys.stderr)

    def _make_sink(self) -> Sink | None:
        if self.settings.mode in ("run", "race"):
            return None
        return Spool(Path(self.settings.spool)) if self.settings.spool else MemorySink()


def start_run(
    settings: TrialSettings, apply_recipe: ApplyRecipe | None = None, fork_safety: ForkSafety | None = None
) -> ScriptRun:
    """Sets up slipstream in this process, before the script's first line."""
    run = ScriptRun(settings, apply_recipe, fork_safety)
    run.start()
    return run


@contextlib.contextmanager
def _undisturbed(is_wanted: bool) -> Iterator[None]:
    """Ignores two signals whose handlers would raise while the session is written. The first is SIGINT, from a second
    Ctrl-C. If this process hangs, the parent ends it. The second is SIGCHLD. After a worker was killed, torch's handler
    of SIGCHLD raises again whenever another child ends."""
    if not is_wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    if hasattr(signal, "SIGCHLD"):
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _library_versions() -> dict[str, str]:
    versions = {name: getattr(sys.modules.get(name), "__version__", "") for name in _LIBRARIES}
    return {name: str(version) for name, version in versions.items() if version}
