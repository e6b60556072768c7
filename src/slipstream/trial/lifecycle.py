"""One process riding, from boarding to leaving: to be watched (observing.py), to race (racing.py), or, for `run`, with
its recipe and a count of its steps. Imports no torch before the script does, and lets no fault of its own reach it."""

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

from slipstream.observe.recorder import Recorder, Sink
from slipstream.records import Ended, Ending, Message, Recipe, Role, Tick, Told
from slipstream.seams.import_hooks import ImportHooks
from slipstream.wire.spool import MemorySink, Spool

if TYPE_CHECKING:
    from slipstream.seams.patching import Patches
    from slipstream.trial.check_mode import CheckMode
    from slipstream.trial.forked import ForkSafety
    from slipstream.trial.race_mode import RaceMode
    from slipstream.trial.recipe_protocol import AppliedRecipe, ApplyRecipe
    from slipstream.trial.step_count import StepCount

_LIBRARIES = ("lightning", "pytorch_lightning", "transformers", "accelerate", "datasets", "torchvision", "PIL", "numpy")


class TrialSettings(msgspec.Struct, frozen=True):
    mode: Literal["check", "run", "watch", "race"]
    num_steps: int = 0
    seconds: float = 60.0
    spool: str = ""
    script: list[str] = []
    schedule: str = ""  # another than check's own: module:class
    profile: str = ""  # a file for torch's own profile of a few steps; of memory: for its snapshot
    recipe: Recipe = Recipe()  # run, race
    # race alone
    role: Role = "base"
    baton: str = ""  # a Unix socket
    tick: Tick = "optimizer"
    seed: int = 0
    warm_up: int = 5
    limit_bytes: int = 0  # that the system holds a fit to; 0: none


class ScriptRun:
    def __init__(
        self, settings: TrialSettings, fit: ApplyRecipe | None = None, fairness: ForkSafety | None = None
    ) -> None:
        self.settings = settings
        self.fit = fit  # puts the recipe in place
        self.fairness = fairness  # of a process that had imported torch before the script did
        self.context: AppliedRecipe | None = None
        self.complaints: list[str] = []
        self._sink: Sink | None = self._make_sink()
        self.recorder = Recorder(self._sink)
        self._company: CheckMode | RaceMode | None = None
        self.tally: StepCount | None = None
        self.arrivals = ImportHooks()
        self.patches: Patches | None = None
        self._complained: set[str] = set()
        self._start_ns = self.recorder.clock.now_ns()

    @property
    def messages(self) -> list[tuple[int, Message]]:
        """What was recorded, where there is no spool."""
        assert isinstance(self._sink, MemorySink)
        return [(os.getpid(), message) for message in self._sink.messages]

    def board(self, role: str = "rider") -> None:
        self.recorder.board(role)
        self._company = self._find_company()
        if self._company is None:
            self.arrivals.when_imported("torch", self._on_torch)
        else:
            self._company.board()

    def _find_company(self) -> CheckMode | RaceMode | None:
        if self.settings.mode == "run":
            return None
        if self.settings.mode == "race":
            from slipstream.trial.race_mode import RaceMode

            return RaceMode(self)
        from slipstream.trial.check_mode import CheckMode

        return CheckMode(self)

    def board_child(self) -> None:
        """In a process that the script forked: start afresh. It keeps the seams that it inherited."""
        self.recorder.forget()
        if self._company is not None:
            self._company.board_child()
        self.recorder.board("child")

    def leave(self, ending: Ending) -> None:
        """Writes what is left, and puts everything back as it was."""
        with _undisturbed(self.settings.mode == "check"):
            self._leave(ending)

    def _leave(self, ending: Ending) -> None:
        if self._company is not None:
            self._company.leave(ending)
        self.recorder.flush(is_last=True)
        self.recorder.write(Told(libraries=_library_versions()))
        if self.patches is not None:
            self.take_away(self.patches)
        self.arrivals.close()
        self.recorder.write(Ended(ending))
        self.recorder.close()

    def take_away(self, patches: Patches) -> None:
        """A fault here changes neither the script's exit code nor its exception. In a process that was forked they are
        left: what their undoing touches, such as weights in shared memory, its parent is still using."""
        if patches.process != os.getpid():
            return
        try:
            patches.close()
        except Exception as fault:
            self.complain("leaving", fault)

    def summary_line(self) -> str:
        seconds = (self.recorder.clock.now_ns() - self._start_ns) / 1e9
        steps = self.tally.num_steps if self.tally is not None else 0
        if self.tally is None or not steps:
            return f"slipstream: {seconds:.1f} s; no update and no batch was seen, so there was no step to count"
        samples = self.tally.count_samples()
        digits = 0 if samples >= 10 * seconds else 1
        rate = f", {samples / seconds:,.{digits}f} samples/s" if samples else ""
        return f"slipstream: {steps:,} steps in {seconds:.1f} s ({steps / seconds:.1f} steps/s{rate})"

    def excuse(self, ending: Ending) -> Ending:
        return ending if self._company is None else self._company.excuse(ending)

    def _on_torch(self, module: ModuleType) -> None:
        try:
            self._install_tally(module)
        except Exception as fault:  # a torch we do not know: the script goes on without us
            self.complain("seams", fault)

    def _install_tally(self, torch: Any) -> None:
        from slipstream.seams.patching import Patches
        from slipstream.trial.step_count import StepCount

        self.patches = Patches(self.complain, torch.compiler.is_dynamo_compiling)
        early = Patches(self.complain, torch.compiler.is_dynamo_compiling)
        self.patches.on_close(early.close)
        if self.fit is not None and self.settings.recipe.choices:
            self.context = self.fit(self.settings.recipe, self.patches, self.complain, False)
        self.tally = StepCount()
        self.tally.install(self.patches, early)

    def complain(self, seam: str, fault: BaseException) -> None:
        """A fault of ours: said once, and the seam is out of service."""
        if seam in self._complained:
            return
        self._complained.add(seam)
        sentence = f"the seam '{seam}' was switched off after {type(fault).__name__}: {fault}"
        self.complaints.append(sentence)
        with contextlib.suppress(Exception):
            self.recorder.note(sentence)
            print(f"slipstream: {sentence}; the script goes on", file=sys.stderr)

    def _make_sink(self) -> Sink | None:
        if self.settings.mode in ("run", "race"):
            return None
        return Spool(Path(self.settings.spool)) if self.settings.spool else MemorySink()


def board(settings: TrialSettings, fit: ApplyRecipe | None = None, fairness: ForkSafety | None = None) -> ScriptRun:
    ride = ScriptRun(settings, fit, fairness)
    ride.board()
    return ride


@contextlib.contextmanager
def _undisturbed(is_wanted: bool) -> Iterator[None]:
    """A second Ctrl-C while the session is being written would lose it; the parent ends us if we hang. So would torch's
    own handler, which raises once more for a worker that was killed, at whatever child's end comes next."""
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
