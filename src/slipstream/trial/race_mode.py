"""Sets up a process for a race: seeds, controls, the recipe, the fingerprint recorder and the baton."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from slipstream.records import Ending
from slipstream.seams.patching import Patches
from slipstream.trial.forked import refuse
from slipstream.trial.seeding import SHIFT, Seeding
from slipstream.wire.protocol import Report

if TYPE_CHECKING:
    from slipstream.sandbox.memory_limit import Limit
    from slipstream.trial.baton import Baton
    from slipstream.trial.fingerprint import FingerprintRecorder
    from slipstream.trial.lifecycle import ScriptRun


class RaceMode:
    """What a process of a racing trial needs beyond running the script."""

    def __init__(self, run: ScriptRun) -> None:
        self._run = run
        self._seeds = Patches(run.complain, lambda: False)
        self._baton: Baton | None = None
        self._fingerprint: FingerprintRecorder
        self._limit: Limit | None = None  # of a memory fit

    def start(self) -> None:
        settings, import_hooks = self._run.settings, self._run.import_hooks
        Seeding(settings.seed, SHIFT if settings.role == "seed" else 0, self._seeds).install(import_hooks)
        import_hooks.when_imported("torch", self._on_torch)

    def start_child(self) -> None:
        if self._baton is not None:
            self._baton.forget()

    def leave(self, ending: Ending) -> None:
        if self._limit is not None:
            self._limit.lift()  # making the report needs memory
        if self._baton is not None:
            # A memory fit always reports: if memory ran out in the first step, a technique may have declined before.
            self._baton.finish(ending, is_always_told=self._limit is not None)
        self._seeds.close()

    def excuse(self, ending: Ending) -> Ending:
        return ending

    def _on_torch(self, module: ModuleType) -> None:
        """After a fault here the trial never pauses. The backend sees none of its ticks and ends it."""
        try:
            self._install(module)
        except Exception as fault:
            self._run.complain("race", fault)

    def _install(self, torch: Any) -> None:
        from slipstream.trial.baton import Baton
        from slipstream.trial.fingerprint import FingerprintRecorder
        from slipstream.trial.step_count import StepCount

        run, settings = self._run, self._run.settings
        assert run.apply_recipe is not None
        run.patches = patches = Patches(run.complain, torch.compiler.is_dynamo_compiling)
        early = Patches(run.complain, torch.compiler.is_dynamo_compiling)
        patches.on_close(early.close)
        run.context = context = run.apply_recipe(settings.recipe, patches, run.complain, settings.role == "proof")
        context.is_racing = True
        context.technique = "fingerprint"  # what follows is not part of a technique
        if settings.role in ("rounding", "coarse"):
            from slipstream.trial.numerics_controls import Coarsen, Nudge

            context.on_model(Nudge() if settings.role == "rounding" else Coarsen())
        baton = self._baton = Baton(settings.baton, settings.warm_up)
        fingerprint = self._fingerprint = FingerprintRecorder(
            lambda: baton.num_ticks, by_hand=settings.tick == "backward"
        )
        context.on_model(fingerprint.add_module)
        fingerprint.install(patches)
        if settings.role == "fit":
            self._limit_memory(fingerprint)
        step_count = StepCount()
        step_count.install(patches, early)
        baton.count_samples = step_count.count_samples
        baton.synchronise = fingerprint.synchronise
        baton.aside_ns = lambda: fingerprint.aside_ns + context.once_ns
        baton.report = self._report
        baton.starts.once_ns = lambda: context.once_ns
        baton.starts.install(patches)
        self._count_ticks(baton, patches)

        timing = Patches(run.complain, torch.compiler.is_dynamo_compiling)
        patches.on_close(timing.close)
        baton.time_input(timing)

        def on_warm() -> None:
            timing.close()
            fingerprint.end_snapshots()
            if self._limit is not None:
                self._limit.level()

        baton.on_join, baton.on_warm = self._refuse_unsafe_fork, on_warm

    def _refuse_unsafe_fork(self) -> None:
        """Refuses a forked process if the script set something before its first step that only takes effect before
        torch is imported. The backend then starts the trial in a new process."""
        fork_safety = self._run.fork_safety
        if fork_safety is not None and (obstacle := fork_safety.obstacle_by_now()):
            refuse(self._run.settings.spool, obstacle)

    def _limit_memory(self, fingerprint: FingerprintRecorder) -> None:
        """Sets up a memory fit. Gradient sketches are not recorded, because making them needs memory."""
        from slipstream.sandbox.memory_limit import Limit

        assert self._run.context is not None
        self._limit = Limit(self._run.settings.limit_bytes)
        self._run.context.on_model(self._limit.begin)
        fingerprint.end_snapshots()

    def _count_ticks(self, baton: Baton, patches: Patches) -> None:
        tick = self._run.settings.tick
        if tick == "optimizer":
            baton.count_updates(patches)
        elif tick == "backward":
            baton.count_backwards(patches)
        elif tick == "input":
            baton.count_batches(patches)
        else:
            assert self._run.context is not None
            baton.count_calls(self._run.context)

    def _report(self) -> Report:
        context, fingerprint, baton = self._run.context, self._fingerprint, self._baton
        assert context is not None and baton is not None
        peak_bytes, free_bytes = fingerprint.device_memory()
        limit = self._limit
        return Report(
            losses=fingerprint.take_losses(),
            snapshots=fingerprint.take_snapshots(),
            digests=[(baton.num_ticks, fingerprint.digest() if limit is None else "")],
            device_peak_bytes=peak_bytes,
            device_free_bytes=free_bytes,
            start_bytes=limit.start_bytes if limit is not None else 0,
            held_bytes=limit.weigh() if limit is not None else 0,
            limit_fault=limit.fault if limit is not None else "",
            changes=list(context.change_notes),
            declined=list(context.decline_notes),
            complaints=list(self._run.complaints),
            edits=list(context.edits),
        )
