"""Workers are started again at every epoch, and the first batch waits for them."""

from __future__ import annotations

from slipstream.diagnose.gain import gain_of
from slipstream.diagnose.hotspots import FEWEST_SAMPLES, hottest_line, total, watched_stacks
from slipstream.diagnose.input_path import input_path
from slipstream.diagnose.source_hints import joined, place, with_loader_argument
from slipstream.diagnose.speedtest_context import about_starting
from slipstream.diagnose.steps.selection import epoch_steps, is_several_epochs
from slipstream.diagnose.steps.training_time import epoch_start_ms
from slipstream.numbers import in_ms, in_percent, plural
from slipstream.records import Finding, Session, Summary


def find(session: Session, summary: Summary) -> list[Finding]:
    path, steps = input_path(session, summary), epoch_steps(session)
    if path is None or steps is None or path.loader.num_workers == 0 or path.loader.persistent_workers:
        return []
    if not is_several_epochs(session):
        return []
    start_ms = epoch_start_ms(session, summary.step_ms)
    # Persistent workers still have to build the epoch's first batch. Only the time of their start is saved.
    saved_ms = start_ms - path.work_ms
    epoch_ms = steps * summary.step_ms + start_ms
    if saved_ms <= 0:
        return []
    return [
        Finding(
            cause="worker_restart",
            title="Workers start again at every epoch",
            evidence=f"The first step of an epoch takes {in_ms(start_ms)} longer than the others, "
            f"{in_percent(start_ms / epoch_ms)} of an epoch of {plural(round(steps), 'step')}.",
            predicted_gain=gain_of(epoch_ms, epoch_ms - saved_ms),
            change=with_loader_argument(session, path.loader, "persistent_workers", "True"),
            settings={"persistent_workers": "True"},
            site=path.loader.site,
            techniques=["persistent_workers"],
            advice=joined(
                "Do not do this if the dataset changes between epochs: workers keep the one that they started with.",
                _where(session),
                about_starting(session, saved_ms, path.loader.num_workers),
            ),
        )
    ]


def _where(session: Session) -> str:
    """A sentence with the hottest line of a worker's start-up; "" if most samples are outside the user's code.

    The line may be in a worker_init_fn, or in a dataset that is built when it is unpickled.
    """
    stacks = watched_stacks(session, "worker", ("start",))
    own = [stack for stack in stacks if stack.file]
    hot = hottest_line(session, own)
    if hot is None or total(own) < max(FEWEST_SAMPLES, total(stacks) / 2):
        return ""
    return f"A worker's start is mostly at {place(hot.site)}."
