"""Sets up a process for `check` and `watch`: the seams, the search for the outermost module, the schedule and its
survey, and the stack sampler. In a process that becomes a loader's worker, it records the worker's batches instead of
steps."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from slipstream.records import Ending, Told
from slipstream.seams.patching import Patches, Substitute

if TYPE_CHECKING:
    from slipstream.observe.fetch_recorder import FetchRecorder
    from slipstream.observe.schedule.base import Schedule
    from slipstream.observe.stacks.sampler import StackSampler
    from slipstream.observe.survey import Survey
    from slipstream.seams.command_line import CommandLineSeam
    from slipstream.trial.lifecycle import ScriptRun

_LOG_LEVEL, _ERRORS = "TORCH_CPP_LOG_LEVEL", "ERROR"
_PATIENCE_NS = 50_000_000  # steps that are shorter than this are counted several at a time


class CheckMode:
    """What a process of `check` or `watch` needs beyond running the script. It listens to the recorder (steps and
    pulses) and to the seams (loaders, workers, optimizers), and passes on what the schedule, the survey and the search
    for modules need."""

    def __init__(self, run: ScriptRun) -> None:
        self._run = run
        self._recorder = run.recorder
        self._schedule: Schedule | None = None
        self._survey: Survey
        self._sampler: StackSampler | None = None
        self._fetches: FetchRecorder | None = None  # in a loader's worker
        self._has_device = False
        self._is_hushed = False
        self._click: ModuleType | None = None  # click.core, if the script has imported it
        self._command_line: CommandLineSeam  # exists once torch is imported

    def start(self) -> None:
        if self._run.settings.schedule and "torch" not in sys.modules and _LOG_LEVEL not in os.environ:
            # torch reads this variable while it is imported. Without the variable, torch's allocator warns of every
            # block that was allocated before a profile started.
            os.environ[_LOG_LEVEL] = _ERRORS
            self._is_hushed = True
        import_hooks = self._run.import_hooks
        import_hooks.when_imported("torch", self._on_torch)
        import_hooks.when_imported("safetensors.torch", self._on_safetensors)
        import_hooks.when_imported("transformers.training_args", self._on_transformers)
        import_hooks.when_imported("click.core", self._on_click)

    def start_child(self) -> None:
        self._sampler = self._fetches = None
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
        """Turns an exception that the schedule caused into a normal stop. The script did not fail by itself, and the
        schedule was about to stop it."""
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
        from slipstream.seams.command_line import CommandLineSeam
        from slipstream.seams.loader import LoaderSeam, WorkerSeam
        from slipstream.seams.modules.module import ModuleSeam
        from slipstream.seams.saving import SavingSeam
        from slipstream.seams.training import BackwardSeam, OptimizerSeam, SchedulerSeam
        from slipstream.trial.module_search import ModuleSearch

        recorder = self._recorder
        self._run.patches = patches = Patches(self._run.complain, torch.compiler.is_dynamo_compiling)
        self.loader = LoaderSeam(recorder, self)
        self.loader.install(patches)
        recorder.shortcut.is_supplying = self._run.settings.mode == "check"
        patches.on_close(recorder.bar_shortcut)
        self.modules = ModuleSeam(recorder)
        self.modules.install(patches)
        self._search = ModuleSearch(self.modules, recorder.shortcut)
        BackwardSeam(recorder).install(patches)
        self._optimizers = OptimizerSeam(recorder, self._on_new_optimizer)
        self._optimizers.install(patches)
        SchedulerSeam(recorder).install(patches)
        recorder.add_listener(self)
        self._start_schedule()
        self._survey.install(patches)
        WorkerSeam(self).install(patches)
        SavingSeam(recorder).install(patches, torch, "save")
        self._command_line = CommandLineSeam(lambda flags: recorder.queue.write(Told(flags=flags)))
        self._command_line.install(patches)
        if self._click is not None:
            self._command_line.install_click(patches, self._click)

    def _on_safetensors(self, module: ModuleType) -> None:
        from slipstream.seams.saving import SavingSeam

        if self._run.patches is not None:
            SavingSeam(self._recorder).install(self._run.patches, module, "save_file")

    def _on_click(self, module: ModuleType) -> None:
        self._click = module
        if self._run.patches is not None:
            self._command_line.install_click(self._run.patches, module)

    def _on_transformers(self, module: ModuleType) -> None:
        """Stores the user's line that creates TrainingArguments, because this line configures the Trainer's loaders."""
        from slipstream.seams.user_code import current_site

        def after(token: Any, args: Any, kwargs: Any, result: Any) -> None:
            self.loader.framework_site = current_site()

        if self._run.patches is not None:
            arguments = vars(module)["TrainingArguments"]
            self._run.patches.around(arguments, "__init__", "transformers.arguments", lambda args, kwargs: None, after)

    def _start_schedule(self) -> None:
        from slipstream.observe.schedule.check_schedule import CheckSchedule
        from slipstream.observe.survey import Survey
        from slipstream.trial.recipe_protocol import find_schedule

        settings, recorder = self._run.settings, self._recorder
        endless = settings.mode == "watch"
        self._survey = survey = Survey(
            recorder,
            self.modules,
            self._optimizers,
            rehearsal_s=0.0 if endless else max(1.5, 0.15 * settings.seconds),
            profile_path=settings.profile,
            before_timing=self._stop_sampler,
        )
        if settings.schedule:
            make_schedule = find_schedule(settings.schedule)
            self._schedule = make_schedule(
                recorder, survey, settings.seconds, self.modules, self._optimizers, settings.profile
            )
        else:
            seconds = 1e9 if endless else settings.seconds
            self._schedule = CheckSchedule(recorder, survey, seconds, settings.num_steps, watch_only=endless)

    # --- what the recorder calls ------------------------------------------------------------------------------------

    def on_steps(self, num: int) -> None:
        if self._search.on_steps(num):
            self._look_at_device()
        if self._schedule is not None:
            self._schedule.on_steps(num)
            self._survey.at_step()
            is_patient = self._search.is_settled and self._schedule.is_patient
            self._recorder.patience_ns = _PATIENCE_NS if is_patient else 0

    def on_pulse(self) -> None:
        """Starts the sampler at the first pulse, so that a process that never trains runs no sampler. A loader's worker
        ignores pulses, because the schedule never stops a worker."""
        if self._schedule is None or self._fetches is not None:
            return
        if self._sampler is None:
            self._start_sampler(self._schedule)
        self._schedule.on_pulse()

    # --- what the seams call ----------------------------------------------------------------------------------------

    def on_new_loader(self) -> None:
        self._search.start()

    def on_iterator(self, iterator: Any) -> None:
        if self._schedule is not None:
            self._schedule.rewind(iterator)

    def before_workers(self) -> None:
        self._survey.break_off_dissection()
        if self._schedule is not None:
            self._schedule.break_off()

    def supply(self, iterator: Any, loader: int) -> Substitute | None:
        if self._schedule is None or self._run.settings.mode != "check":
            return None
        return self._schedule.supply(iterator, loader)

    def _on_new_optimizer(self) -> None:
        self.modules.is_pulse = False
        self._search.start()

    def _look_at_device(self) -> None:
        """Installs the transfer seam and the device clock as soon as a model is found on an accelerator."""
        kinds = ("", "cpu", "meta")
        devices = [model.device for model in self._recorder.known.models() if model.device.split(":")[0] not in kinds]
        if self._has_device or not devices:
            return
        from slipstream.seams.device_clock import make_device_clock
        from slipstream.seams.transfer import SyncSeam, TransferSeam

        self._has_device = True
        assert self._run.patches is not None
        device = make_device_clock(devices[0])
        if device is not None:
            self._recorder.follow_device(device)
        TransferSeam(self._recorder).install(self._run.patches)
        SyncSeam(self._recorder).install(self._run.patches)
        self.loader.look_for_bytes()

    # --- the sampler ------------------------------------------------------------------------------------------------

    def _start_sampler(self, schedule: Schedule) -> None:
        from slipstream.observe.stacks.sampler import StackSampler

        self._sampler = StackSampler(
            self._recorder,
            lambda: schedule.block_index,
            self._fetches,
            self.loader.collate_codes,
            lambda: self._write_progress(schedule),
        )
        self._sampler.start()

    def _write_progress(self, schedule: Schedule) -> None:
        if self._run.settings.mode == "check":
            self._recorder.queue.write(schedule.progress())

    def _stop_sampler(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()

    # --- loader workers: they inherit the seams and record events of their own --------------------------------------

    def become_worker(self, worker: int) -> FetchRecorder:
        from slipstream.observe.fetch_recorder import FetchRecorder

        recorder = self._recorder
        recorder.forget()
        recorder.report_start("worker")
        recorder.phase = "input"
        self._fetches = FetchRecorder(recorder.queue, recorder.clock, self.loader.current, worker)
        assert self._schedule is not None
        self._start_sampler(self._schedule)
        return self._fetches

    def retire_worker(self) -> None:
        if self._fetches is not None:
            self._fetches.close()
        self._stop_sampler()
        self._recorder.queue.close()
