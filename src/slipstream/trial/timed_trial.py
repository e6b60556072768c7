"""What the baton asks of a racing trial: counts, times, and the report for the backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.seams.patching import Patches
from slipstream.trial.fingerprint import FingerprintRecorder
from slipstream.trial.forked import refuse
from slipstream.trial.hooked_step_counter import HookedStepCounter
from slipstream.trial.printed_metrics import PrintedMetrics
from slipstream.trial.recipe_protocol import AppliedRecipe
from slipstream.wire.protocol import Report

if TYPE_CHECKING:
    from slipstream.sandbox.memory_limit import MemoryLimit
    from slipstream.trial.lifecycle import ScriptRun
    from slipstream.trial.rounding_noise import RoundingNoise


class TimedTrial:
    """The methods that the baton calls. In this class they do nothing. A subclass overrides them."""

    def count_samples(self) -> int:
        """Returns the number of samples that were trained on so far."""
        return 0

    def synchronise(self) -> None:
        """Waits until the queued work of the step is done."""

    def aside_ns(self) -> int:
        """Returns the time spent so far on recording, and on work that a training does only once."""
        return 0

    def recording_ns(self) -> int:
        """Returns the part of `aside_ns` that was spent on recording."""
        return 0

    def before_joining(self) -> None:
        """Is called at the first tick, before the trial connects to the backend."""

    def after_warm_up(self) -> None:
        """Is called when the warm-up has ended."""

    def report(self, num_ticks: int) -> Report:
        """Returns the report for the backend after this number of ticks."""
        return Report()


class FingerprintedTrial(TimedTrial):
    """A trial with everything that a race records. `timing` holds patches that are removed after the warm-up. `limit`
    is given in a memory fit, and `noise` in a rounding control."""

    def __init__(
        self,
        run: ScriptRun,
        context: AppliedRecipe,
        fingerprint: FingerprintRecorder,
        metrics: PrintedMetrics,
        step_counter: HookedStepCounter,
        timing: Patches,
        limit: MemoryLimit | None,
        noise: RoundingNoise | None,
    ) -> None:
        self._run = run
        self._context = context
        self._fingerprint = fingerprint
        self._metrics = metrics
        self._step_counter = step_counter
        self._timing = timing
        self._limit = limit
        self._noise = noise

    def count_samples(self) -> int:
        return self._step_counter.count_samples()

    def synchronise(self) -> None:
        self._fingerprint.synchronise()

    def aside_ns(self) -> int:
        return self._fingerprint.aside_ns + self._context.once_ns

    def recording_ns(self) -> int:
        return self._fingerprint.aside_ns

    def before_joining(self) -> None:
        """Refuses a forked process if the script set something before its first step that only takes effect before
        torch is imported. The backend then starts the trial in a new process."""
        fork_safety = self._run.fork_safety
        if fork_safety is not None and (obstacle := fork_safety.obstacle_by_now()):
            refuse(self._run.settings.spool, obstacle)

    def after_warm_up(self) -> None:
        self._timing.close()
        self._fingerprint.begin_timing()
        if self._limit is not None:
            self._limit.level()

    def report(self, num_ticks: int) -> Report:
        context, fingerprint, limit = self._context, self._fingerprint, self._limit
        peak_bytes, free_bytes = fingerprint.device_memory()
        digest = fingerprint.digest() if limit is None else None
        if fingerprint.unread and fingerprint.unread not in self._run.complaints:
            self._run.complaints.append(fingerprint.unread)
        return Report(
            losses=fingerprint.take_losses(),
            snapshots=fingerprint.take_snapshots(),
            metrics=self._metrics.take(),
            own_precision=self._noise.own_precision if self._noise is not None else "fp32",
            digests=[(num_ticks, digest)],
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
