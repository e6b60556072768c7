"""Asks the system to read the files of coming batches into memory, several batches before they are opened.

Helps on disks with slow seeks and on network drives, as long as the data is not in memory yet: in the first epoch, or
if the data is larger than memory. Hurts little: a thread spends a few microseconds per file.

The technique learns the files of each sample from the first batches and from the lists of paths in the dataset. It does
nothing if the index of a sample does not determine its files, or if files are opened outside Python. It requests at
most a tenth of the free memory ahead. Batches, their order and their bits are unchanged. A race shows little of the
gain, because a trial finds files in memory that another trial has read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.numbers import in_percent
from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, already, no
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._core.source_edits import where

if TYPE_CHECKING:
    from slipstream.data.files.read_ahead import ReadAhead
    from slipstream.techniques._core.context import ApplyContext, LoaderArguments

CARD = Card(
    title="Files read ahead",
    seam="loader",
    causes=("slow_read",),
    numerics="identical",
    work="spread",
    claims=("loader.files",),
)
VALUES = range(1, 257)
DEPTHS = (8, 32)  # Numbers of batches
LEAST_SHARE = 0.1  # Minimum share of reading in the work on a batch
# The minimum share for slow disks. It is lower, because the check may have found the files in memory.
SLOW_DISKS = {"hdd": 0.03, "network": 0.03}


def applies(observation: Observation) -> Answer:
    loader, disk = observation.loader, observation.environment.disk_kind
    if loader is None:
        return no("the script has no DataLoader")
    if loader.is_iterable:
        return no("an iterable dataset has no order that is known in advance")
    if disk == "memory":
        return already("the working directory lies in memory already")
    if loader.start_method not in ("", "fork"):
        return no(f"workers are started by {loader.start_method}, and the files that they open are not seen")
    share = _share_of_reading(observation)
    if share is None:
        return no("the check did not see how the time of a batch is spent")
    if share < SLOW_DISKS.get(disk, LEAST_SHARE):
        return no(f"reading is only {in_percent(share)} of the work on a batch")
    return YES


def _share_of_reading(observation: Observation) -> float | None:
    from slipstream.diagnose.causes.slow_read import reads  # Imported here because `run` does not need it.
    from slipstream.diagnose.input_path import input_path

    summary = observation.summary
    path = input_path(observation.session, summary) if summary is not None else None
    return path.share([stack for stack in path.stacks if reads(stack)]) if path is not None else None


def settings(observation: Observation) -> list[Setting]:
    loader = observation.loader
    num_batches = loader.num_batches if loader is not None else None
    return [depth for depth in DEPTHS if num_batches is None or depth < num_batches] or [DEPTHS[0]]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.data.files.read_ahead import ReadAhead

    ahead = ReadAhead(int(setting), context.changed, context.decline)
    ahead.install(context.patches)
    context.on_loader(lambda arguments: _look(context, ahead, arguments))


def _look(context: ApplyContext, ahead: ReadAhead, arguments: LoaderArguments) -> None:
    """Registers the dataset and changes no argument. The first batches show which files can be read ahead."""
    from torch.utils.data import IterableDataset

    from slipstream.data.workers.worker_blockers import start_method
    from slipstream.seams.user_code import current_site

    if isinstance(arguments["dataset"], IterableDataset):
        context.decline(f"the loader built {where(current_site())} reads a stream")
    elif arguments["num_workers"] and start_method(arguments) != "fork":
        context.decline(f"the workers of the loader built {where(current_site())} are not forked")
    else:
        ahead.want(arguments["dataset"])


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    loader = observation.loader
    reason = "call os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED) for the files of coming batches, in a thread"
    return [Edit("read_ahead", "by_hand", loader.site if loader is not None else None, reason=reason)]
