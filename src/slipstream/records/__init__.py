"""Frozen structs that every other package reads. They need no torch and contain no logic beyond properties."""

from slipstream.records.anatomy import Anatomy, Attention, Misalignment, ModuleShare, Operator, TorchProfile
from slipstream.records.comparison import Difference, Outcome, PhaseChange, SessionComparison
from slipstream.records.environment import Environment, Gpu, GpuReading, Revision, TorchFacts
from slipstream.records.event import PHASES, Event, EventKind, Phase
from slipstream.records.finding import Bound, Ceilings, Finding
from slipstream.records.fitting import FitAttempt, Fitting, TrialOutcome
from slipstream.records.footprint import KINDS, Footprint, Growth, LineBytes, ModuleBytes, Moment, Remains
from slipstream.records.history import IndexEntry, SessionGlance
from slipstream.records.message import BlockEnded, Ended, Message, Met, ProcessStarted, Progress, Seen, Told
from slipstream.records.objects import LargeContainer, Loader, Model, Optimizer, TensorFacts
from slipstream.records.race import (
    BlockTiming,
    Decision,
    Fingerprint,
    Numerics,
    Role,
    Sketch,
    Snapshot,
    Speed,
    Tick,
    TrialRecord,
    TrialSpec,
    Tuning,
    Verdict,
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
    "BlockTiming",
    "Bound",
    "Ceilings",
    "Choice",
    "Decision",
    "Difference",
    "Edit",
    "Ended",
    "Ending",
    "Environment",
    "Evaluation",
    "Event",
    "EventKind",
    "Fetch",
    "Finding",
    "Fingerprint",
    "FitAttempt",
    "Fitting",
    "Footprint",
    "Gpu",
    "GpuReading",
    "Growth",
    "IndexEntry",
    "Judgement",
    "LargeContainer",
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
    "ProcessStarted",
    "Progress",
    "Reading",
    "Recipe",
    "Rehearsal",
    "Remains",
    "Revision",
    "Role",
    "Seen",
    "Session",
    "SessionComparison",
    "SessionGlance",
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
    "TrialOutcome",
    "TrialRecord",
    "TrialSpec",
    "Tuning",
    "Verdict",
    "WorkerMemory",
]
