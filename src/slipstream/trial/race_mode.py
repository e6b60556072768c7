"""Everything that a race adds to a ride, put together: seeds, twins, the recipe, the witness, the baton."""

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
    def __init__(self, ride: ScriptRun) -> None:
        self._ride = ride
        self._seeds = Patches(ride.complain, lambda: False)
        self._baton: Baton | None = None
        self._fingerprint: FingerprintRecorder
        self._limit: Limit | None = None  # of a fit

    def board(self) -> None:
        settings, arrivals = self._ride.settings, self._ride.arrivals
        Seeding(settings.seed, SHIFT if settings.role == "seed" else 0, self._seeds).install(arrivals)
        arrivals.when_imported("torch", self._on_torch)

    def board_child(self) -> None:
        if self._baton is not None:
            self._baton.forget()

    def leave(self, ending: Ending) -> None:
        if self._limit is not None:
            self._limit.lift()  # what is to be reported takes some
        if self._baton is not None:  # of a fit: what ran out in the first step may have had a technique that declined
            self._baton.finish(ending, is_always_told=self._limit is not None)
        self._seeds.close()

    def excuse(self, ending: Ending) -> Ending:
        return ending

    def _on_torch(self, module: ModuleType) -> None:
        """A fault here leaves a rider that never stands still: the relay sees none of its ticks and ends it."""
        try:
            self._install(module)
        except Exception as fault:
            self._ride.complain("race", fault)

    def _install(self, torch: Any) -> None:
        from slipstream.trial.baton import Baton
        from slipstream.trial.fingerprint import FingerprintRecorder
        from slipstream.trial.step_count import StepCount

        ride, settings = self._ride, self._ride.settings
        assert ride.fit is not None
        ride.patches = patches = Patches(ride.complain, torch.compiler.is_dynamo_compiling)
        early = Patches(ride.complain, torch.compiler.is_dynamo_compiling)
        patches.on_close(early.close)
        ride.context = context = ride.fit(settings.recipe, patches, ride.complain, settings.role == "proof")
        context.is_racing = True
        context.technique = "witness"  # the techniques have had their say
        if settings.role in ("rounding", "coarse"):
            from slipstream.trial.numerics_controls import Coarsen, Nudge

            context.on_model(Nudge() if settings.role == "rounding" else Coarsen())
        baton = self._baton = Baton(settings.baton, settings.warm_up)
        fingerprint = self._fingerprint = FingerprintRecorder(
            lambda: baton.num_ticks, by_hand=settings.tick == "backward"
        )
        context.on_model(fingerprint.meet)
        fingerprint.install(patches)
        if settings.role == "fit":
            self._hold(fingerprint)
        tally = StepCount()
        tally.install(patches, early)
        baton.count_samples = tally.count_samples
        baton.synchronise = fingerprint.synchronise
        baton.aside_ns = lambda: fingerprint.aside_ns + context.once_ns
        baton.report = self._report
        baton.starts.once_ns = lambda: context.once_ns
        baton.starts.install(patches)
        self._count_ticks(baton, patches)

        timing = Patches(ride.complain, torch.compiler.is_dynamo_compiling)
        patches.on_close(timing.close)
        baton.time_input(timing)

        def on_warm() -> None:
            timing.close()
            fingerprint.end_snapshots()
            if self._limit is not None:
                self._limit.level()

        baton.on_join, baton.on_warm = self._stay_fair, on_warm

    def _stay_fair(self) -> None:
        """A script that means what it sets before torch is imported gets a process in which it was not."""
        fairness = self._ride.fairness
        if fairness is not None and (obstacle := fairness.obstacle_by_now()):
            refuse(self._ride.settings.spool, obstacle)

    def _hold(self, fingerprint: FingerprintRecorder) -> None:
        """Looked at for its memory: no sketches of gradients, whose making takes some."""
        from slipstream.sandbox.memory_limit import Limit

        assert self._ride.context is not None
        self._limit = Limit(self._ride.settings.limit_bytes)
        self._ride.context.on_model(self._limit.begin)
        fingerprint.end_snapshots()

    def _count_ticks(self, baton: Baton, patches: Patches) -> None:
        tick = self._ride.settings.tick
        if tick == "optimizer":
            baton.count_updates(patches)
        elif tick == "backward":
            baton.count_backwards(patches)
        elif tick == "input":
            baton.count_batches(patches)
        else:
            assert self._ride.context is not None
            baton.count_calls(self._ride.context)

    def _report(self) -> Report:
        context, fingerprint, baton = self._ride.context, self._fingerprint, self._baton
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
            changes=list(context.changes),
            declined=[*context.declined, *self._ride.complaints],
            edits=list(context.edits),
        )
