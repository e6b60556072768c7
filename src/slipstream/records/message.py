"""Messages from the processes of a trial to the parent. They are sent one by one, so that the parent has most of the
data even if a trial is killed."""

from __future__ import annotations

import msgspec

from slipstream.records.anatomy import Anatomy, TorchProfile
from slipstream.records.environment import TorchFacts
from slipstream.records.event import Event
from slipstream.records.flag import Flag
from slipstream.records.footprint import Footprint
from slipstream.records.objects import Loader, Model, Optimizer, Trainer
from slipstream.records.rehearsal import Rehearsal
from slipstream.records.session import Ending, Leak, Length, Memory
from slipstream.records.site import Site
from slipstream.records.stack import StackCount
from slipstream.records.step import Block, Fetch


class ProcessStarted(msgspec.Struct, frozen=True, tag=True):
    """The first message of every process of a trial."""

    process: int
    role: str  # "main" (runs the script), "worker" (of a loader), "child" (started by the script)
    time_ns: int


class Seen(msgspec.Struct, frozen=True, tag=True):
    events: list[Event] = []
    fetches: list[Fetch] = []
    stacks: list[StackCount] = []  # counts since the last message
    memory: list[Memory] = []


class Met(msgspec.Struct, frozen=True, tag=True):
    """Facts about an object or a site that was used for the first time. A later message about the same object replaces
    the earlier one."""

    loader: Loader | None = None
    model: Model | None = None
    optimizer: Optimizer | None = None
    site: Site | None = None
    site_ident: int = -1


class BlockEnded(msgspec.Struct, frozen=True, tag=True):
    block: Block


class Told(msgspec.Struct, frozen=True, tag=True):
    """Facts that are sent once."""

    note: str = ""
    anatomy: Anatomy | None = None
    torch: TorchFacts | None = None
    length: Length | None = None
    leaks: list[Leak] = []
    rehearsals: list[Rehearsal] = []
    footprint: Footprint | None = None
    profile: TorchProfile | None = None
    libraries: dict[str, str] = {}
    written: list[str] = []
    makes_optimizer: bool = False
    trainer: Trainer | None = None
    flags: list[Flag] = []


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Progress for the live display. It is not saved."""

    num_steps: int
    block: str
    step_ms: float
    share: float  # share of the trial that is done, 0 to 1


class Ended(msgspec.Struct, frozen=True, tag=True):
    ending: Ending


Message = ProcessStarted | Seen | Met | BlockEnded | Told | Progress | Ended
