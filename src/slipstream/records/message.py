"""What a riding process tells the outside, message by message, so that a killed rider has still told most of it."""

from __future__ import annotations

import msgspec

from slipstream.records.anatomy import Anatomy, TorchProfile
from slipstream.records.environment import TorchFacts
from slipstream.records.event import Event
from slipstream.records.footprint import Footprint
from slipstream.records.objects import Loader, Model, Optimizer
from slipstream.records.rehearsal import Rehearsal
from slipstream.records.session import Ending, Leak, Length, Memory
from slipstream.records.site import Site
from slipstream.records.stack import StackCount
from slipstream.records.step import Block, Fetch


class Boarded(msgspec.Struct, frozen=True, tag=True):
    """First message of every riding process."""

    process: int
    role: str  # rider (runs the script), worker (serves a loader), child (spawned by the script)
    time_ns: int


class Seen(msgspec.Struct, frozen=True, tag=True):
    events: list[Event] = []
    fetches: list[Fetch] = []
    stacks: list[StackCount] = []  # counts since the last message, to be added up
    memory: list[Memory] = []


class Met(msgspec.Struct, frozen=True, tag=True):
    """An object or a place met for the first time, or known better now: the later message replaces the earlier."""

    loader: Loader | None = None
    model: Model | None = None
    optimizer: Optimizer | None = None
    site: Site | None = None
    site_ident: int = -1


class BlockEnded(msgspec.Struct, frozen=True, tag=True):
    block: Block


class Told(msgspec.Struct, frozen=True, tag=True):
    """Facts that arrive once."""

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


class Progress(msgspec.Struct, frozen=True, tag=True):
    """For the live line only."""

    num_steps: int
    block: str
    step_ms: float
    share: float  # of the ride, 0 to 1


class Ended(msgspec.Struct, frozen=True, tag=True):
    ending: Ending


Message = Boarded | Seen | Met | BlockEnded | Told | Progress | Ended
