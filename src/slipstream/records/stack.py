"""Counts of the stack sampler: where a process was when it was sampled. Only counts of many samples are meaningful."""

from __future__ import annotations

from typing import Literal

import msgspec

Stage = Literal[
    "read",  # files, sockets, memory maps
    "decode",  # image, audio, video
    "transform",  # any other processing of a sample
    "collate",
    "handover",  # pickling, and copying between processes
    "pin",
    "wait",  # waiting for another process, thread or the device
    "sync",  # .item(), .cpu() and similar
    "saving",
    "logging",
    "metrics",  # values that are computed for people to read
    "compute",  # torch's own operators
    "loss",  # anything else between the forward and the backward pass
    "update",  # a loop of the user over parameters: a hand-written optimizer or weight average
    "python",  # any other code of the user
    "other",
]


class StackCount(msgspec.Struct, frozen=True, array_like=True, gc=False):
    role: Literal["main", "worker"]
    phase: str  # a Phase ("input" for workers), "start" before the first step or batch, or "evaluation"
    stage: Stage
    file: str  # file of the innermost frame in the user's own code; "" if there was none
    line: int
    function: str
    expression: str  # the expression that is evaluated on that line (Python 3.11+), else the whole line
    leaf: str  # innermost frame of all, as "package/module.py:function"
    in_call: bool  # whether the user's frame was inside a call into C; if not, the frame's own bytecode was running
    block: int  # index into the session's blocks
    count: int
