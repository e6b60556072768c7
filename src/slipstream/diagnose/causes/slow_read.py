"""Samples wait for a disk or a network, or far more data is read than used."""

from __future__ import annotations

import re

from slipstream.diagnose.gain import gain_of
from slipstream.diagnose.hotspots import hottest_line
from slipstream.diagnose.input_path import InputPath, costs_time, data_site, input_path, step_after
from slipstream.diagnose.source_hints import joined, taking
from slipstream.diagnose.speedtest_context import about_reading, sample_ms
from slipstream.numbers import in_ms, in_percent, part_of_ms
from slipstream.records import Finding, Session, StackCount, Summary

LEAST_SHARE = 0.3
AHEAD = 0.9  # Share saved if data are read in advance or cached. A copy from memory remains.
READS = re.compile(r"\b(open|read\w*|recv|urlopen|fromfile|memmap|mmap|get_object|download\w*)\s*\(")


def find(session: Session, summary: Summary) -> list[Finding]:
    path = input_path(session, summary)
    if path is None or not costs_time(summary, path):
        return []
    stacks = [stack for stack in path.stacks if reads(stack)]
    share = path.share(stacks)
    if share < LEAST_SHARE:
        return []
    then_ms = step_after(session, summary, path, work_ms=path.work_ms * (1 - AHEAD * share))
    hot = hottest_line(session, stacks)
    return [
        Finding(
            cause="slow_read",
            title=taking("Reading", share),
            evidence=f"Reading is {in_percent(share)} of the {in_ms(path.work_ms)} that a step's batch takes to build"
            f"{_waiting(path)}; the step waits {part_of_ms(path.wait_ms, summary.step_ms)}.",
            predicted_gain=gain_of(summary.step_ms, then_ms),
            change="read only what the sample needs, once: np.memmap(path, mode='r') in __init__ and a slice here",
            site=data_site(path.loader, hot),
            techniques=["read_ahead", "sample_cache"],
            advice=joined(_disk(session), about_reading(session, sample_ms(summary, share * path.work_ms))),
        )
    ]


def reads(stack: StackCount) -> bool:
    """Whether the stack sample is in code that reads.

    A wait, or code of unknown kind, counts only if the line itself uses a file or a socket.
    """
    return stack.stage == "read" or (stack.stage in ("wait", "other") and bool(READS.search(stack.expression)))


def _waiting(path: InputPath) -> str:
    return f", {in_percent(path.waits)} of it without using the CPU" if path.waits > 0.3 else ""


def _disk(session: Session) -> str:
    kind = {"hdd": "a spinning disk", "network": "a network drive"}.get(session.environment.disk_kind)
    return f"The working directory is on {kind}." if kind else ""
