"""One process riding: puts the seams in place when the script imports torch, listens, and takes everything away again.
Imports no torch before the script does, and never lets its own faults reach the script."""

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

from slipstream.records import Ended, Ending, Message, Model, Recipe, Role, Tick, Told
from slipstream.runner.recorder import Recorder, Sink
from slipstream.runner.spool import MemorySink, Spool
from slipstream.seams.arrival import Arrivals

if TYPE_CHECKING:
    from slipstream.runner.fit import Fit, Outfit
    from slipstream.runner.racing import Racing
    from slipstream.runner.sampler import Sampler
    from slipstream.runner.schedule import Schedule
    from slipstream.runner.survey import Survey
    from slipstream.runner.tally import Tally
    from slipstream.seams.patch import Patches

_LOG_LEVEL, _ERRORS = "TORCH_CPP_LOG_LEVEL", "ERROR"
_SEARCHES = (16, 64, 256, 1024)  # steps after which the outermost modules are looked for again, for one step
_PATIENCE_NS = 25_000_000  # steps shorter than that are counted several at a time
_LIBRARIES = ("lightning", "pytorch_lightning", "transformers", "accelerate", "datasets", "torchvision", "PIL", "numpy")


class RideSettings(msgspec.Struct, frozen=True):
    mode: Literal["check", "run", "watch", "race"]
    num_steps: int = 0
    seconds: float = 60.0
    spool: str = ""
    script: list[str] = []
    schedule: str = ""  # another than check's own: module:class
    profile: str = ""  # a file for torch's own profile of the observed step; of memory: for its snapshot
    recipe: Recipe = Recipe()  # run, race
    # race alone
    role: Role = "base"
    baton: str = ""  # a Unix socket
    tick: Tick = "optimizer"
    seed: int = 0
    warm_up: int = 5
    limit_bytes: int = 0  # that the system holds a fit to; 0: none


class Ride:
    def __init__(self, settings: RideSettings, fit: Fit | None = None) -> None:
        self.settings = settings
        self.fit = fit  # puts the recipe in place
        self.rig: Outfit | None = None
        self.complaints: list[str] = []
        self._racing: Racing | None = None
        self._sink: Sink | None = self._make_sink()
        self.recorder = Recorder(self._sink)
        self.tally: Tally | None = None
        self.arrivals = Arrivals()
        self.patches: Patches | None = None
        self._schedule: Schedule | None = None
        self._survey: Survey
        self._sampler: Sampler | None = None
        self._complained: set[str] = set()
        self._has_device = False
        self._is_hushed = False
        self._steps_since_search = 0
        self._settles_at = 2  # the search ends with so many steps; 0: it has ended
        self._start_ns = self.recorder.clock.now_ns()

    @property
    def messages(self) -> list[tuple[int, Message]]:
        """What was recorded, where there is no spool."""
        assert isinstance(self._sink, MemorySink)
        return [(os.getpid(), message) for message in self._sink.messages]

    def board(self, role: str = "rider") -> None:
        self.recorder.board(role)
        if self.settings.schedule and "torch" not in sys.modules and _LOG_LEVEL not in os.environ:
            # Read by torch as it is loaded: its allocator else warns of every block older than a profile
            os.environ[_LOG_LEVEL] = _ERRORS
            self._is_hushed = True
        if self.settings.mode == "race":
            self._board_race()
            return
        self.arrivals.when_imported("torch", self._on_torch)
        self.arrivals.when_imported("safetensors.torch", self._on_safetensors)
        self.arrivals.when_imported("transformers.training_args", self._on_transformers)

    def _board_race(self) -> None:
        from slipstream.runner.racing import Racing

        self._racing = Racing(self)
        self._racing.board()

    def board_child(self) -> None:
        """In a process that the script forked: start afresh. It keeps the seams that it inherited."""
        if self._racing is not None:
            self._racing.board_child()
        self.recorder.forget()
        self._sampler = None
        if self._schedule is not None:
            self._start_schedule()
        self.recorder.board("child")

    def leave(self, ending: Ending) -> None:
        """Writes what is left, and puts everything back as it was."""
        with _undisturbed(self.settings.mode == "check"):
            self._leave(ending)

    def _leave(self, ending: Ending) -> None:
        if self._racing is not None:
            self._racing.leave(ending)
        if self._schedule is not None:
            self._survey.break_off_dissection()
            try:
                self._schedule.finish()
            except Exception as fault:
                self.complain("the end of the ride", fault)
            self._survey.close()
        if self._sampler is not None:
            self._sampler.stop()
        else:
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
        rate = f", {samples / seconds:,.0f} samples/s" if samples else ""
        return f"slipstream: {steps:,} steps in {seconds:.1f} s ({steps / seconds:.1f} steps/s{rate})"

    # --- arrivals --------------------------------------------------------------------------------------------------

    def _on_torch(self, module: ModuleType) -> None:
        if self._is_hushed:
            os.environ.pop(_LOG_LEVEL, None)
        try:
            if self.settings.mode == "run":
                self._install_tally(module)
            else:
                self._install(module)
        except Exception as fault:  # a torch we do not know: the script goes on without us
            self.complain("seams", fault)

    def _install_tally(self, torch: Any) -> None:
        from slipstream.runner.tally import Tally
        from slipstream.seams.patch import Patches

        self.patches = Patches(self.complain, torch.compiler.is_dynamo_compiling)
        early = Patches(self.complain, torch.compiler.is_dynamo_compiling)
        self.patches.on_close(early.close)
        if self.fit is not None and self.settings.recipe.choices:
            self.rig = self.fit(self.settings.recipe, self.patches, self.complain, False)
        self.tally = Tally()
        self.tally.install(self.patches, early)

    def _install(self, torch: Any) -> None:
        from slipstream.seams.loader import LoaderSeam, WorkerSeam
        from slipstream.seams.module import ModuleSeam
        from slipstream.seams.patch import Patches
        from slipstream.seams.saving import SavingSeam
        from slipstream.seams.training import BackwardSeam, OptimizerSeam, SchedulerSeam

        recorder = self.recorder
        self.patches = patches = Patches(self.complain, torch.compiler.is_dynamo_compiling)
        self._loader = LoaderSeam(recorder, self._supply if self.settings.mode == "check" else None)
        self._loader.install(patches)
        recorder.shortcut.is_supplying = self.settings.mode == "check"
        patches.on_close(recorder.bar_shortcut)
        recorder.loader_of_worker = lambda: self._loader.current
        self._modules = ModuleSeam(recorder)
        self._modules.install(patches)
        self._loader.on_new_loader = self._search_again
        BackwardSeam(recorder).install(patches)
        self._optimizers = OptimizerSeam(recorder)
        self._optimizers.on_new_optimizer = self._on_new_optimizer
        self._optimizers.install(patches)
        SchedulerSeam(recorder).install(patches)
        recorder.on_step = self._on_step
        self._start_schedule()
        self._survey.install(patches)
        WorkerSeam(recorder, self).install(patches)
        SavingSeam(recorder).install(patches, torch, "save")

    def _on_safetensors(self, module: ModuleType) -> None:
        from slipstream.seams.saving import SavingSeam

        if self.patches is not None and self.settings.mode != "run":
            SavingSeam(self.recorder).install(self.patches, module, "save_file")

    def _on_transformers(self, module: ModuleType) -> None:
        """Where the user tells the Trainer how to build its loaders."""
        from slipstream.seams.place import current_site

        def after(token: Any, args: Any, kwargs: Any, result: Any) -> None:
            self._loader.framework_site = current_site()

        if self.patches is not None and self.settings.mode != "run":
            arguments = vars(module)["TrainingArguments"]
            self.patches.around(arguments, "__init__", "transformers.arguments", lambda args, kwargs: None, after)

    # --- while it rides --------------------------------------------------------------------------------------------

    def _on_step(self, num: int) -> None:
        before, self._steps_since_search = self._steps_since_search, self._steps_since_search + num
        since = self._steps_since_search
        if 0 < self._settles_at <= since:
            self._settles_at = 0
            self._modules.settle()
            self._look_at_device()
        elif any(before < mark <= since for mark in _SEARCHES):  # a module that is called for the first time now
            self._settles_at = since + 1
            self._modules.search()
        if self._schedule is not None:
            self._schedule.on_step(num)
            self._survey.at_step()
            is_settled = since > _SEARCHES[0] and not self._settles_at
            self.recorder.patience_ns = _PATIENCE_NS if is_settled and self._schedule.is_patient else 0

    def _on_new_optimizer(self) -> None:
        self._modules.is_pulse = False
        self._search_again()

    def _search_again(self) -> None:
        self._steps_since_search = 0
        self._settles_at = 2
        self._modules.search()

    def _supply(self, iterator: Any, loader: int) -> Any:
        return self._schedule.supply(iterator, loader) if self._schedule is not None else None

    def _look_at_device(self) -> None:
        """The transfer seam and the device's clock, once a model turns out to live on an accelerator."""
        devices = {s.device.split(":")[0] for s in self.recorder.subjects.values() if isinstance(s, Model)}
        if self._has_device or not devices - {"", "cpu", "meta"}:
            return
        from slipstream.clock.device import make_device_clock
        from slipstream.seams.transfer import SyncSeam, TransferSeam

        self._has_device = True
        assert self.patches is not None
        device = make_device_clock()
        if device is not None:
            self.recorder.follow_device(device)
        TransferSeam(self.recorder).install(self.patches)
        SyncSeam(self.recorder).install(self.patches)
        self._loader.look_for_bytes()

    def _start_schedule(self) -> None:
        from slipstream.runner.fit import find_schedule
        from slipstream.runner.schedule import Schedule
        from slipstream.runner.survey import Survey

        settings = self.settings
        endless = settings.mode == "watch"
        if settings.schedule:
            other = find_schedule(settings.schedule)
            schedule: Schedule = other(self.recorder, settings.seconds, self._modules, self._optimizers)
            schedule.keep_at(settings.profile)
        else:
            schedule = Schedule(self.recorder, 1e9 if endless else settings.seconds, settings.num_steps, endless)
        survey = Survey(self.recorder, self._modules, self._optimizers)
        survey.rehearsal_s = 0.0 if endless else max(1.5, 0.15 * settings.seconds)
        survey.profile_path = settings.profile
        survey.on_quiet = self._stop_sampler
        schedule.on_first_step = survey.at_first_step
        schedule.on_block = survey.at_block
        schedule.on_done = survey.at_end
        schedule.excerpt_start = survey.start_excerpt
        schedule.excerpt_stop = survey.end_excerpt
        schedule.probe_start = survey.start_dissection
        schedule.probe_stop = survey.end_dissection
        self._loader.on_workers = self._before_workers
        self._loader.on_iterator = schedule.rewind
        self._survey = survey
        self._schedule = schedule
        self.recorder.on_pulse = self._on_pulse

    def _before_workers(self) -> None:
        self._survey.break_off_dissection()
        if self._schedule is not None:
            self._schedule.break_off()

    def excuse(self, ending: Ending) -> Ending:
        """An exception that our schedule brought about is no failure of the script's: it was to be stopped anyway."""
        if ending.reason == "raised" and self._schedule is not None and self._schedule.takes_blame:
            return Ending("stopped", 0, ending.seconds)
        return ending

    def _on_pulse(self) -> None:
        """The sampler starts with the first pulse: a process that never trains never pays for it."""
        assert self._schedule is not None
        if self._sampler is None:
            self._start_sampler()
        self.recorder.on_pulse = self._schedule.on_pulse
        self._schedule.on_pulse()

    def _start_sampler(self) -> None:
        from slipstream.runner.sampler import Sampler

        assert self._schedule is not None
        schedule = self._schedule
        self._sampler = Sampler(self.recorder, lambda: schedule.block_index)
        self._sampler.collate_codes = self._loader.collate_codes
        if self.settings.mode == "check":
            self._sampler.on_flush = lambda: self.recorder.write(schedule.progress())
        self._sampler.start()

    def _stop_sampler(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()

    # --- loader workers: they inherit the seams and become listeners of their own ------------------------------------

    def become_worker(self, worker: int) -> None:
        self.recorder.forget()
        self.recorder.worker = worker
        self.recorder.board("worker")
        self.recorder.on_pulse = None
        self.recorder.phase = "input"
        if self._sink is not None:
            self._follow_memory()
        self._start_sampler()

    def _follow_memory(self) -> None:
        from slipstream.runner.private_memory import PrivateGauge

        self._worker_gauge = PrivateGauge(self.recorder)
        self.recorder.on_fetch = self._worker_gauge.at_batch

    def retire_worker(self) -> None:
        if self.recorder.on_fetch is not None:
            self._worker_gauge.at_end()
        self._stop_sampler()
        self.recorder.close()

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


def board(settings: RideSettings, fit: Fit | None = None) -> Ride:
    ride = Ride(settings, fit)
    ride.board()
    return ride


@contextlib.contextmanager
def _undisturbed(is_wanted: bool) -> Iterator[None]:
    """A second Ctrl-C while the session is being written would lose it; the parent ends us if we hang."""
    if not is_wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)


def _library_versions() -> dict[str, str]:
    versions = {name: getattr(sys.modules.get(name), "__version__", "") for name in _LIBRARIES}
    return {name: str(version) for name, version in versions.items() if version}
