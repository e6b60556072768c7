"""The loader builds every batch in the training process, while the step waits."""

from __future__ import annotations

from slipstream.diagnose.gain import gain_of
from slipstream.diagnose.input_path import costs_time, handover_ms, input_path, step_after
from slipstream.diagnose.source_hints import with_loader_argument
from slipstream.diagnose.steps.selection import epoch_steps, is_several_epochs
from slipstream.diagnose.worker_count import best_num_workers, worker_advice
from slipstream.numbers import part_of_ms, plural
from slipstream.records import Finding, Loader, Session, Summary

SHORT_EPOCH_MS = 60e3  # Starting workers takes from a tenth of a second to a few seconds.
# Least ratio of the work on a batch to the cost of passing it on. Below this ratio, workers gain little or cost time.
WORTH = 2.0


def find(session: Session, summary: Summary) -> list[Finding]:
    path = input_path(session, summary)
    if path is None or path.loader.num_workers > 0 or path.loader.num_threads > 0 or not costs_time(summary, path):
        return []
    workers = best_num_workers(session, summary, path)
    if workers == 0 or path.work_ms < WORTH * sum(handover_ms(path)):
        return []
    then_ms = step_after(session, summary, path, num_workers=workers)
    steps = epoch_steps(session) if is_several_epochs(session) else None
    if steps is not None:
        then_ms += path.work_ms / max(steps, 1.0)  # The step waits for the whole first batch of every epoch.
    is_short = steps is not None and steps * summary.step_ms < SHORT_EPOCH_MS
    usable = plural(session.environment.num_usable, "usable core")
    kind = "; most of that is waiting, which needs no core" if path.waits > 0.5 else ""
    return [
        Finding(
            cause="no_workers",
            title="The loader has no workers",
            evidence=f"Input takes {part_of_ms(path.wait_ms, summary.step_ms)} a step{kind}; "
            f"the loader has no workers on a machine with {usable}.",
            predicted_gain=gain_of(summary.step_ms, then_ms),
            change=_change(session, path.loader, workers, is_short),
            site=path.loader.site,
            settings={"num_workers": str(workers), **({"persistent_workers": "True"} if is_short else {})},
            techniques=["workers", "thread_workers", "prefetch"],
            advice=worker_advice(session, path.loader, workers),
        )
    ]


def _change(session: Session, loader: Loader, workers: int, is_short: bool) -> str:
    """The change. For short epochs it contains persistent workers, because starting workers may cost what they gain."""
    prefix = "dataloader_" if loader.framework == "transformers" else ""
    staying = f", {prefix}persistent_workers=True" if is_short else ""
    return with_loader_argument(session, loader, "num_workers", f"{workers}{staying}")
