"""Sets up a process for `check` and `watch`: the seams, the search for the outermost module, the schedule and its
survey, and the stack sampler. It also adapts them when the process becomes a loader's worker."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from slipstream.records import Ending, Model
from slipstream.seams.patching import Patches

if TYPE_CHECKING:
    from slipstream.observe.schedule import Schedule
    from slipstream.observe.stack_sampler import StackSampler
    from slipstream.observe.survey import Survey
    from slipstream.trial.lifecycle import ScriptRun

_LOG_LEVEL, _ERRORS = "TORCH_CPP_LOG_LEVEL", "ERROR"
_SEARCHES = (16, 64, 256, 1024)  # steps after which the outermost modules are searched for again, during one step
_PATIENCE_NS = 50_000_000  # shorter steps are counted several at a time


class CheckMode:
    """What a process of `check` or `watch` needs beyond running the script."""

    def __init__(self, run: ScriptRun) -> None:
        self._run = run
        self._recorder = run.recorder
        self._schedule: Schedule | None = None
        self._survey: Survey
        self._sampler: StackSampler | None = None
        self._has_device = False
        self._is_hushed = False
        self._steps_since_search = 0
        self._settles_at = 2  # number of steps at which the search ends; 0 if it has ended

    def start(self) -> None:
        if self._run.settings.schedule and "torch" not in sys.modules and _LOG_LEVEL not in os.environ:
            # torch reads this while it is imported. Without it, torch's allocator warns of every block that was
            # allocated before a profile started.
            os.environ[_LOG_LEVEL] = _ERRORS
            self._is_hushed = True
        import_hooks = self._run.import_hooks
        import_hooks.when_imported("torch", self._on_torch)
        import_hooks.when_imported("safetensors.torch", self._on_safetensors)
        import_hooks.when_imported("transformers.training_args", self._on_transformers)

    def start_child(self) -> None:
        self._sampler = None
        if self._schedule is not None:
            self._start_schedule()

    def leave(self, ending: Ending) -> None:
        if self._schedule is not None:
            self._survey.break_off_dissection()
            try:
                self._schedule.finish()
            except Exception as fault:
                self._run.complain("the end of the run", fault)
            self._survey.close()
        self._stop_sampler()

    def excuse(self, ending: Ending) -> Ending:
        """Turns an exception that the schedule caused into a normal stop: the script was about to be stopped anyway,
        and did not fail by itself."""
        if ending.reason == "raised" and self._schedule is not None and self._schedule.takes_blame:
            return Ending("stopped", 0, ending.seconds)
        return ending

    # --- import hooks -------------------------------------------------------------------------------------------------

    def _on_torch(self, module: ModuleType) -> None:
        if self._is_hushed:
            os.environ.pop(_LOG_LEVEL, None)
        try:
            self._install(module)
        except Exception as fault:  # an unknown version of torch: the script continues without seams
            self._run.complain("seams", fault)

    def _install(self, torch: Any) -> None:
        from slipstream.seams.loader import LoaderSeam, WorkerSeam
        from slipstream.seams.module import ModuleSeam
        from slipstream.seams.saving import SavingSeam
        from slipstream.seams.training import BackwardSeam, OptimizerSeam, SchedulerSeam

        recorder = self._recorder
        self._run.patches = patches = Patches(self._run.complain, torch.compiler.is_dynamo_compiling)
        self.loader = LoaderSeam(recorder, self._supply if self._run.settings.mode == "check" else None)
        self.loader.install(patches)
        recorder.shortcut.is_supplying = self._run.settings.mode == "check"
        patches.on_close(recorder.bar_shortcut)
        recorder.loader_of_worker = lambda: self.loader.current
        self.modules = ModuleSeam(recorder)
        self.modules.install(patches)
        self.loader.on_new_loader = self._search_again
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

        if self._run.patches is not None:
            SavingSeam(self._recorder).install(self._run.patches, module, "save_file")

    def _on_transformers(self, module: ModuleType) -> None:
        """Remembers the line on which the user creates TrainingArguments: it configures the Trainer's loaders."""
        from slipstream.seams.user_code import current_site

        def after(token: Any, args: Any, kwargs: Any, result: Any) -> None:
            self.loader.framework_site = current_site()

        if self._run.patches is not None:
            arguments = vars(module)["TrainingArguments"]
            self._run.patches.around(arguments, "__init__", "transformers.arguments", lambda args, kwargs: None, after)

    # --- during the run --------------------------------------------------------------------------------------------

    def _on_step(self, num: int) -> None:
        before, self._steps_since_search = self._steps_since_search, self._steps_since_search + num
        since = self._steps_since_search
        if 0 < self._settles_at <= since:
            self._settles_at = 0
            self.modules.settle()
            self._look_at_device()
        elif any(before < mark <= since for mark in _SEARCHES):  # for modules that are called late
            self._settles_at = since + 1
            self.modules.search()
            self._recorder.shortcut.due_ns = 0  # a search is expensive: end it at the next step
        if self._schedule is not None:
            self._schedule.on_step(num)
            self._survey.at_step()
            is_settled = since > _SEARCHES[0] and not self._settles_at
            self._recorder.patience_ns = _PATIENCE_NS if is_settled and self._schedule.is_patient else 0

    def _on_new_optimizer(self) -> None:
        self.modules.is_pulse = False
        self._search_again()

    def _search_again(self) -> None:
        self._steps_since_search = 0
        self._settles_at = 2
        self.modules.search()

    def _supply(self, iterator: Any, loader: int) -> Any:
        return self._schedule.supply(iterator, loader) if self._schedule is not None else None

    def _look_at_device(self) -> None:
        """Installs the transfer seam and the device clock as soon as a model is found on an accelerator."""
        devices = {s.device.split(":")[0] for s in self._recorder.subjects.values() if isinstance(s, Model)}
        if self._has_device or not devices - {"", "cpu", "meta"}:
            return
        from slipstream.seams.device_clock import make_device_clock
        from slipstream.seams.transfer import SyncSeam, TransferSeam

        self._has_device = True
        assert self._run.patches is not None
        device = make_device_clock()
        if device is not None:
            self._recorder.follow_device(device)
        TransferSeam(self._recorder).install(self._run.patches)
        SyncSeam(self._recorder).install(self._run.patches)
        self.loader.look_for_bytes()

    def _start_schedule(self) -> None:
        from slipstream.observe.schedule import Schedule
        from slipstream.observe.survey import Survey
        from slipstream.trial.recipe_protocol import find_schedule

        settings = self._run.settings
        endless = settings.mode == "watch"
        if settings.schedule:
            other = find_schedule(settings.schedule)
            schedule: Schedule = other(self._recorder, settings.seconds, self.modules, self._optimizers)
            schedule.keep_at(settings.profile)
        else:
            schedule = Schedule(self._recorder, 1e9 if endless else settings.seconds, settings.num_steps, endless)
        survey = Survey(self._recorder, self.modules, self._optimizers)
        survey.rehearsal_s = 0.0 if endless else max(1.5, 0.15 * settings.seconds)
        survey.profile_path = settings.profile
        survey.on_quiet = self._stop_sampler
        schedule.will_train = self._optimizers.has_any
        schedule.on_first_step = survey.at_first_step
        schedule.on_block = survey.at_block
        schedule.on_done = survey.at_end
        schedule.excerpt_start = survey.start_excerpt
        schedule.excerpt_stop = survey.end_excerpt
        schedule.tell_leaks = survey.tell_leaks
        schedule.probe_start = survey.start_dissection
        schedule.probe_stop = survey.end_dissection
        self.loader.on_workers = self._before_workers
        self.loader.on_iterator = schedule.rewind
        self._survey = survey
        self._schedule = schedule
        self._recorder.on_pulse = self._on_pulse

    def _before_workers(self) -> None:
        self._survey.break_off_dissection()
        if self._schedule is not None:
            self._schedule.break_off()

    def _on_pulse(self) -> None:
        """Starts the sampler at the first pulse, so that a process that never trains does not pay for it."""
        assert self._schedule is not None
        if self._sampler is None:
            self._start_sampler()
        self._recorder.on_pulse = self._schedule.on_pulse
        self._schedule.on_pulse()

    def _start_sampler(self) -> None:
        from slipstream.observe.stack_sampler import StackSampler

        assert self._schedule is not None
        schedule = self._schedule
        self._sampler = StackSampler(self._recorder, lambda: schedule.block_index)
        self._sampler.collate_codes = self.loader.collate_codes
        if self._run.settings.mode == "check":
            self._sampler.on_flush = lambda: self._recorder.write(schedule.progress())
        self._sampler.start()

    def _stop_sampler(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()

    # --- loader workers: they inherit the seams and record events of their own ---------------------------------------

    def become_worker(self, worker: int) -> None:
        self._recorder.forget()
        self._recorder.worker = worker
        self._recorder.report_start("worker")
        self._recorder.on_pulse = None
        self._recorder.phase = "input"
        self._follow_memory()
        self._start_sampler()

    def _follow_memory(self) -> None:
        from slipstream.observe.worker_memory import PrivateGauge

        self._worker_gauge = PrivateGauge(self._recorder)
        self._recorder.on_fetch = self._worker_gauge.at_batch

    def retire_worker(self) -> None:
        if self._recorder.on_fetch is not None:
            self._worker_gauge.at_end()
        self._stop_sampler()
        self._recorder.close()
