"""Frozen structs that every other room reads. No torch, no logic beyond a property."""

from slipstream.records.anatomy import Anatomy, Attention, Misalignment, ModuleShare, Operator
from slipstream.records.environment import Environment, Gpu, GpuReading, TorchFacts
from slipstream.records.event import PHASES, Event, EventKind, Phase
from slipstream.records.finding import Bound, Ceilings, Finding
from slipstream.records.message import BlockEnded, Boarded, Ended, Message, Met, Progress, Seen, Told
from slipstream.records.rehearsal import Rehearsal
from slipstream.records.session import SCHEMA, Ending, Leak, Length, Memory, Session, Summary
from slipstream.records.site import Site
from slipstream.records.stack import StackCount, Stage
from slipstream.records.step import Block, BlockKind, Evaluation, Fetch, Step
from slipstream.records.subject import Loader, Model, Optimizer, TensorFacts

__all__ = [
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
    "Ended",
    "Ending",
    "Environment",
    "Evaluation",
    "Event",
    "EventKind",
    "Fetch",
    "Finding",
    "Gpu",
    "GpuReading",
    "Leak",
    "Length",
    "Loader",
    "Memory",
    "Message",
    "Met",
    "Misalignment",
    "Model",
    "ModuleShare",
    "Operator",
    "Optimizer",
    "Phase",
    "Progress",
    "Rehearsal",
    "Seen",
    "Session",
    "Site",
    "StackCount",
    "Stage",
    "Step",
    "Summary",
    "TensorFacts",
    "Told",
    "TorchFacts",
]
