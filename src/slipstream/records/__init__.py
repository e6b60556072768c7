"""Frozen structs that every other room reads. No torch, no logic beyond a property."""

from slipstream.records.anatomy import Anatomy, Attention, Misalignment, ModuleShare, Operator, TorchProfile
from slipstream.records.comparison import Comparison, Difference, Outcome, PhaseChange
from slipstream.records.environment import Environment, Gpu, GpuReading, Revision, TorchFacts
from slipstream.records.event import PHASES, Event, EventKind, Phase
from slipstream.records.finding import Bound, Ceilings, Finding
from slipstream.records.fitting import Fitting, Trial, TrialOutcome
from slipstream.records.footprint import KINDS, Footprint, Growth, LineBytes, ModuleBytes, Moment, Remains
from slipstream.records.history import Entry, Glance
from slipstream.records.message import BlockEnded, Boarded, Ended, Message, Met, Progress, Seen, Told
from slipstream.records.objects import Hoard, Loader, Model, Optimizer, TensorFacts
from slipstream.records.race import (
    Decision,
    Entrant,
    Lap,
    Numerics,
    RiderRecord,
    Role,
    Sketch,
    Snapshot,
    Speed,
    Tick,
    Tuning,
    Verdict,
    Witness,
)
from slipstream.records.recipe import NUMERICS, Choice, Edit, NumericsClass, Recipe, Setting
from slipstream.records.rehearsal import Rehearsal
from slipstream.records.session import SCHEMA, Ending, Leak, Length, Memory, Session, Summary, WorkerMemory
from slipstream.records.site import Site
from slipstream.records.speedtest import Judgement, Reading, SpeedTest
from slipstream.records.stack import StackCount, Stage
from slipstream.records.step import Block, BlockKind, Evaluation, Fetch, Step

__all__ = [
    "KINDS",
    "NUMERICS",
    "PHASES",
    "SCHEMA",
    "Anatomy",
    "Attention",
    "Block",
    "BlockEnded",
    "BlockKind",
    "Boarded",
    "Bound",
    "Ceilings",
    "Choice",
    "Comparison",
    "Decision",
    "Difference",
    "Edit",
    "Ended",
    "Ending",
    "Entrant",
    "Entry",
    "Environment",
    "Evaluation",
    "Event",
    "EventKind",
    "Fetch",
    "Finding",
    "Fitting",
    "Footprint",
    "Glance",
    "Gpu",
    "GpuReading",
    "Growth",
    "Hoard",
    "Judgement",
    "Lap",
    "Leak",
    "Length",
    "LineBytes",
    "Loader",
    "Memory",
    "Message",
    "Met",
    "Misalignment",
    "Model",
    "ModuleBytes",
    "ModuleShare",
    "Moment",
    "Numerics",
    "NumericsClass",
    "Operator",
    "Optimizer",
    "Outcome",
    "Phase",
    "PhaseChange",
    "Progress",
    "Reading",
    "Recipe",
    "Rehearsal",
    "Remains",
    "Revision",
    "RiderRecord",
    "Role",
    "Seen",
    "Session",
    "Setting",
    "Site",
    "Sketch",
    "Snapshot",
    "Speed",
    "SpeedTest",
    "StackCount",
    "Stage",
    "Step",
    "Summary",
    "TensorFacts",
    "Tick",
    "Told",
    "TorchFacts",
    "TorchProfile",
    "Trial",
    "TrialOutcome",
    "Tuning",
    "Verdict",
    "Witness",
    "WorkerMemory",
]
