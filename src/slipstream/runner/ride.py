"""One process riding: puts the seams in place when the script imports torch, listens, and takes everything away again.
Imports no torch before the script does, and never lets its own faults reach the script."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from slipstream.records import Ended, Ending, Message, Model, Site, Told
from slipstream.runner.recorder import Recorder, Sink
from slipstream.runner.spool import MemorySink, Spool
from slipstream.seams.arrival import Arrivals

if TYPE_CHECKING:
    from slipstream.runner.anatomy import Probe
    from slipstream.runner.growth import MemoryGauge
    from slipstream.runner.sampler import Sampler
    from slipstream.runner.schedule import Schedule
    from slipstream.seams.patch import Patches

_SEARCHES = (16, 64, 256, 1024)  # steps after which the outermost modules are looked for again, for one step
_LIBRARIES = ("lightning", "pytorch_lightning", "transformers", "accelerate", "datasets", "torchvision", "PIL", "numpy")


class RideSettings(msgspec.Struct, frozen=True):
    mode: Literal["check", "run", "watch"]
    num_steps: int = 0
    seconds: float = 60.0
    spool: str = ""
    script: list[str] = []


class Ride:
    def __init__(self, settings: RideSettings) -> None:
        self.settings = settings
        self._sink: Sink | None = self._make_sink()
        self.recorder = Recorder(self._sink)
        self.arrivals = Arrivals()
        self.patches: Patches | None = None
        self._schedule: Schedule | None = None
        self._sampler: Sampler | None = None
        self._complained: set[str] = set()
        self._has_device = False
        self._gauge: MemoryGauge | None = None
        self._start_ns = self.recorder.clock.now_ns()

    @property
    def messages(self) -> list[tuple[int, Message]]:
        """What was recorded, where there is no spool."""
        assert isinstance(self._sink, MemorySink)
        return [(os.getpid(), message) for message in self._sink.messages]

    def board(self, role: str = "rider") -> None:
        self.recorder.board(role)
        self.arrivals.when_imported("torch", self._on_torch)
        self.arrivals.when_imported("safetensors.torch", self._on_safetensors)
        self.arrivals.when_imported("transformers.training_args", self._on_transformers)

    def board_child(self) -> None:
        """In a process that the script forked: start afresh. It keeps the seams that it inherited."""
        self._gauge = None  # /proc/self was the parent's when it was opened
        self.recorder.forget()
        self._sampler = None
        if self._schedule is not None:
            self._start_schedule()
        self.recorder.board("child")

    def leave(self, ending: Ending) -> None:
        """Writes what is left, and puts everything back as it was."""
        with contextlib.suppress(Exception):
            self._stop_probe()
        with contextlib.suppress(Exception):
            if self._schedule is not None:
                self._schedule.finish()
        if self._sampler is not None:
            self._sampler.stop()
        else:
            self.recorder.flush(is_last=True)
        self.recorder.write(Told(libraries=_library_versions()))
        if self.patches is not None:
            self.patches.close()
        if self._gauge is not None:
            self._gauge.close()
        self.arrivals.close()
        self.recorder.write(Ended(ending))
        self.recorder.close()

    def summary_line(self) -> str:
        pace = self.recorder.pace
        seconds = (self.recorder.clock.now_ns() - self._start_ns) / 1e9
        if not pace.num_steps:
            return f"slipstream: {seconds:.1f} s; no module was called, so there was no step to count"
        rate = f", {pace.samples / seconds:,.0f} samples/s" if pace.samples else ""
        return f"slipstream: {pace.num_steps:,} steps in {seconds:.1f} s ({pace.num_steps / seconds:.1f} steps/s{rate})"

    # --- arrivals --------------------------------------------------------------------------------------------------

    def _on_torch(self, module: ModuleType) -> None:
        try:
            self._install(module)
        except Exception as fault:  # a torch we do not know: the script goes on without us
            self.complain("seams", fault)

    def _install(self, torch: Any) -> None:
        from slipstream.seams.loader import FetchSeam, LoaderSeam
        from slipstream.seams.module import ModuleSeam
        from slipstream.seams.patch import Patches
        from slipstream.seams.saving import SavingSeam
        from slipstream.seams.training import BackwardSeam, OptimizerSeam, SchedulerSeam

        recorder = self.recorder
        self.patches = patches = Patches(self.complain, torch.compiler.is_compiling)
        if self.settings.mode != "run":
            self._start_schedule()
        self._loader = LoaderSeam(recorder, self._supply if self.settings.mode == "check" else None)
        self._loader.install(patches)
        recorder.loader_of_worker = lambda: self._loader.current
        self._modules = ModuleSeam(recorder)
        self._modules.install(patches)
        self._loader.on_new_loader = self._search_again
        self._loader.on_workers = self._stop_probe  # a fork under the profiler may crash
        BackwardSeam(recorder).install(patches)
        self._optimizers = OptimizerSeam(recorder)
        self._optimizers.on_new_optimizer = self._search_again
        self._optimizers.install(patches)
        SchedulerSeam(recorder).install(patches)
        recorder.on_step = self._on_step
        if self.settings.mode != "run":
            patches.around(torch, "set_num_threads", "threads", lambda args, kwargs: None, self._after_threads)
            FetchSeam(self).install(patches)
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

        if self.patches is not None:
            arguments = vars(module)["TrainingArguments"]
            self.patches.around(arguments, "__init__", "transformers.arguments", lambda args, kwargs: None, after)

    _threads_site: Site | None = None

    def _after_threads(self, token: Any, args: Any, kwargs: Any, result: Any) -> None:
        from slipstream.seams.place import current_site

        self._threads_site = current_site()

    # --- while it rides --------------------------------------------------------------------------------------------

    _steps_since_search = 0

    def _on_step(self) -> None:
        self._steps_since_search += 1
        if self._steps_since_search in _SEARCHES:  # a module that is called for the first time now
            self._modules.search()
        elif self._steps_since_search == 2 or self._steps_since_search - 1 in _SEARCHES:
            self._modules.settle()
            self._look_at_device()
        if self._schedule is not None:
            self._schedule.on_step()
            self._gauge_memory()

    def _search_again(self) -> None:
        self._steps_since_search = 0
        self._modules.search()

    def _supply(self, iterator: Any, loader: int) -> Any:
        return self._schedule.supply(iterator, loader) if self._schedule is not None else None

    def _look_at_device(self) -> None:
        """The transfer seam and the device's clock, once a model turns out to live on an accelerator."""
        devices = {s.device.split(":")[0] for s in self.recorder.subjects.values() if isinstance(s, Model)}
        if self._has_device or self.settings.mode == "run" or not devices - {"", "cpu", "meta"}:
            return
        from slipstream.clock.device import make_device_clock
        from slipstream.seams.transfer import SyncSeam, TransferSeam

        self._has_device = True
        assert self.patches is not None
        self.recorder.device = make_device_clock()
        TransferSeam(self.recorder).install(self.patches)
        SyncSeam(self.recorder).install(self.patches)

    def _start_schedule(self) -> None:
        from slipstream.runner.growth import MemoryGauge
        from slipstream.runner.schedule import Schedule

        self._gauge = self._gauge or MemoryGauge()
        settings = self.settings
        endless = settings.mode == "watch"
        schedule = Schedule(self.recorder, 1e9 if endless else settings.seconds, settings.num_steps, endless)
        schedule.on_first_step = lambda: self._spare("the facts about torch", self._tell_torch_facts)
        schedule.on_block = lambda: self._spare("the tensors alive", self._count_tensors)
        schedule.on_done = self._tell_the_end
        schedule.probe_start = lambda: self._spare("the anatomy", self._start_probe)
        schedule.probe_stop = self._after_dissection
        self._schedule = schedule
        self.recorder.on_pulse = self._on_pulse

    def _on_pulse(self) -> None:
        """The sampler starts with the first pulse: a process that never trains never pays for it."""
        assert self._schedule is not None
        if self._sampler is None:
            self._start_sampler()
        if self.recorder.thread == threading.get_ident():
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

    # --- loader workers: they inherit the seams and become listeners of their own ------------------------------------

    def begin_fetch(self) -> tuple[int, int]:
        return self.recorder.begin_fetch()

    def end_fetch(self, token: tuple[int, int], num_samples: int) -> None:
        self.recorder.end_fetch(token, num_samples)

    def become_worker(self, worker: int) -> None:
        self.recorder.forget()
        self.recorder.worker = worker
        self.recorder.board("worker")
        self.recorder.on_pulse = None
        self.recorder.phase = "input"
        self._start_sampler()

    def retire_worker(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()
        self.recorder.close()

    # --- facts -----------------------------------------------------------------------------------------------------

    def _tell_torch_facts(self) -> None:
        from slipstream.runner.torch_facts import read_torch_facts

        models = [s for s in self.recorder.subjects.values() if isinstance(s, Model) and s.num_parameters]
        facts = read_torch_facts(models[0].device if models else "cpu")
        self.recorder.write(Told(torch=msgspec.structs.replace(facts, threads_site=self._threads_site)))

    def _gauge_memory(self) -> None:
        recorder = self.recorder
        assert self._gauge is not None
        recorder.remember(self._gauge.read(recorder.pace.num_steps, recorder.clock.now_ns()))

    def _count_tensors(self) -> None:
        recorder = self.recorder
        assert self._gauge is not None
        recorder.remember(self._gauge.read_with_tensors(recorder.pace.num_steps, recorder.clock.now_ns()))

    def _tell_the_end(self) -> None:
        self._spare("the length of the training", self._tell_length)
        self._spare("what keeps tensors alive", self._tell_leaks)

    def _tell_leaks(self) -> None:
        from slipstream.runner.growth import find_leaks

        leaks = find_leaks(sys._getframe(), self.recorder.pace.num_steps)
        if leaks:
            self.recorder.write(Told(leaks=leaks))

    def _tell_length(self) -> None:
        from slipstream.runner.length import find_length

        length = find_length(sys._getframe())
        if length is not None:
            self.recorder.write(Told(length=length))

    def _spare(self, what: str, task: Callable[[], Any]) -> Any:
        """Does what the ride can do without: if it fails the session says so, and nothing else happens."""
        token = self.recorder.enter("other")
        try:
            return task()
        except Exception as fault:
            self.recorder.note(f"{what} could not be read: {type(fault).__name__}: {fault}")
            return None
        finally:
            self.recorder.leave(token, "aside", -1)

    def _start_probe(self) -> bool:
        from slipstream.runner.anatomy import Probe

        models = [model for model in (reference() for reference in self._modules.models) if model is not None]
        self._probe = Probe(models)
        self._probe.start()
        self._modules.on_call = self._catch_call
        return True

    def _catch_call(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What the largest model that learns is called with, for the rehearsals."""
        size = sum(parameter.numel() for parameter in model.parameters()) if model.training else 0
        if size and (self._caught is None or size > self._caught[0]):
            self._caught = (size, model, args, kwargs)

    _caught: tuple[int, Any, tuple[Any, ...], dict[str, Any]] | None = None

    def _rehearse(self) -> None:
        """Races on copies, with the sampler at rest."""
        from slipstream.runner.rehearsing import rehearse

        caught, self._caught = self._caught, None
        self._modules.on_call = None
        if self._sampler is not None:
            self._sampler.stop()
        optimizers = [
            found for found in (reference() for reference in self._optimizers.optimizers) if found is not None
        ]
        model = caught[1:] if caught is not None else None
        self.recorder.is_muted = True
        try:
            rehearsals, reasons = rehearse(model, optimizers, self._denormal_share, 0.15 * self.settings.seconds)
        finally:
            self.recorder.is_muted = False
        self.recorder.write(Told(rehearsals=rehearsals))
        for reason in reasons:
            self.recorder.note(reason)

    _denormal_share = 0.0

    _probe: Probe | None = None

    def _after_dissection(self) -> None:
        self._spare("the anatomy", self._stop_probe)
        if self.settings.mode == "check":
            self._spare("the rehearsals", self._rehearse)

    def _stop_probe(self) -> None:
        probe, self._probe = self._probe, None
        if probe is None:
            return
        anatomy = probe.stop()
        if anatomy is not None:
            self._denormal_share = anatomy.denormal_share or 0.0
            self.recorder.write(Told(anatomy=anatomy))
        elif probe.reason:
            self.recorder.note(f"no anatomy: {probe.reason}")

    def complain(self, seam: str, fault: BaseException) -> None:
        """A fault of ours: said once, and the seam is out of service."""
        if seam in self._complained:
            return
        self._complained.add(seam)
        sentence = f"the seam '{seam}' was switched off after {type(fault).__name__}: {fault}"
        with contextlib.suppress(Exception):
            self.recorder.note(sentence)
            print(f"slipstream: {sentence}; the script goes on", file=sys.stderr)

    def _make_sink(self) -> Sink | None:
        if self.settings.mode == "run":
            return None
        return Spool(Path(self.settings.spool)) if self.settings.spool else MemorySink()


def board(settings: RideSettings) -> Ride:
    ride = Ride(settings)
    ride.board()
    return ride


def _library_versions() -> dict[str, str]:
    versions = {name: getattr(sys.modules.get(name), "__version__", "") for name in _LIBRARIES}
    return {name: str(version) for name, version in versions.items() if version}
