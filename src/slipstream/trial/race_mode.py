"""Sets up a process for a race: seeds, controls, the recipe, the fingerprint recorder and the baton."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from slipstream.records import Ending
from slipstream.seams.patching import Patches
from slipstream.trial.seeding import SHIFT, Seeding

if TYPE_CHECKING:
    from slipstream.sandbox.memory_limit import MemoryLimit
    from slipstream.trial.baton import Baton
    from slipstream.trial.fingerprint import FingerprintRecorder
    from slipstream.trial.lifecycle import ScriptRun


class RaceMode:
    """What a process of a racing trial needs beyond running the script."""

    def __init__(self, run: ScriptRun) -> None:
        self._run = run
        self._seeds = Patches(run.complain, lambda: False)
        self._baton: Baton | None = None
        self._limit: MemoryLimit | None = None  # only in a memory fit

    def start(self) -> None:
        settings, import_hooks = self._run.settings, self._run.import_hooks
        shift = SHIFT * (1 + settings.draw) if settings.role == "seed" else 0
        Seeding(settings.seed, shift, self._seeds).install(import_hooks)
        import_hooks.when_imported("torch", self._on_torch)

    def start_child(self) -> None:
        if self._baton is not None:
            self._baton.forget()

    def leave(self, ending: Ending) -> None:
        if self._limit is not None:
            self._limit.lift()  # making the report needs memory
        if self._baton is not None:
            # In a memory fit the report is always sent. If memory ran out in the first step, the report still says
            # which techniques declined before.
            self._baton.finish(ending, is_always_told=self._limit is not None)
        self._seeds.close()

    def excuse(self, ending: Ending) -> Ending:
        return ending

    def _on_torch(self, module: ModuleType) -> None:
        """Installs the recipe, the recorders and the baton. If this fails, the backend receives no tick and ends the
        trial."""
        try:
            self._install(module)
        except Exception as fault:
            self._run.complain("race", fault)

    def _install(self, torch: Any) -> None:
        from slipstream.trial.baton import Baton
        from slipstream.trial.epoch_starts import EpochStarts
        from slipstream.trial.fingerprint import FingerprintRecorder
        from slipstream.trial.hooked_step_counter import HookedStepCounter
        from slipstream.trial.printed_metrics import PrintedMetrics
        from slipstream.trial.timed_trial import FingerprintedTrial

        run, settings = self._run, self._run.settings
        assert run.apply_recipe is not None
        run.patches = patches = Patches(run.complain, torch.compiler.is_dynamo_compiling)
        run.context = context = run.apply_recipe(settings.recipe, patches, run.complain, settings.role == "proof")
        context.is_racing = True
        context.technique = "fingerprint"  # the calls below belong to no technique
        noise = None
        if settings.role == "rounding":
            from slipstream.trial.rounding_noise import RoundingNoise

            noise = RoundingNoise(settings.precision, settings.draw)
            noise.install(patches)
            context.on_model(noise)
        fingerprint = FingerprintRecorder(lambda: baton.num_ticks, by_hand=settings.tick == "backward")
        context.on_model(fingerprint.add_module)
        fingerprint.install(patches)
        metrics = PrintedMetrics(lambda: baton.num_ticks)
        metrics.install(patches)
        if settings.role == "fit":
            self._limit = self._limit_memory(fingerprint)
        step_counter = HookedStepCounter((settings.tick,), "first", lambda: baton.tick())
        starts = EpochStarts(lambda: context.once_ns)
        starts.install(patches)
        timing = Patches(run.complain, torch.compiler.is_dynamo_compiling)
        trial = FingerprintedTrial(run, context, fingerprint, metrics, step_counter, timing, self._limit, noise)
        baton = self._baton = Baton(settings.baton, settings.warm_up, trial, starts)
        step_counter.install(patches, context)
        patches.on_close(timing.close)
        baton.time_input(timing)

    def _limit_memory(self, fingerprint: FingerprintRecorder) -> MemoryLimit:
        """Sets up a memory fit. Gradient sketches are not recorded, because making them needs memory."""
        from slipstream.sandbox.memory_limit import MemoryLimit

        assert self._run.context is not None
        limit = MemoryLimit(self._run.settings.limit_bytes)
        self._run.context.on_model(limit.begin)
        fingerprint.end_snapshots()
        return limit
