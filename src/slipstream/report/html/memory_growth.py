"""Memory from step to step: of the process, and of the device if there is one."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.numbers import as_count, in_bytes, plural
from slipstream.records import Leak, Session
from slipstream.report.html.chart import Chart, Key, plain_table
from slipstream.report.html.svg import Frame, Point, Scale, axes, line, picture, stretched, thinned
from slipstream.report.text.locations import where

IDENT = "memory"
TITLE = "Memory, step by step"
HEIGHT = 160.0
MOST_POINTS = 800
MOST_ROWS = 100


def memory_chart(session: Session) -> Chart | None:
    resident = [(float(each.step), float(each.resident_bytes)) for each in session.memory if each.resident_bytes]
    device = [(float(each.step), float(each.device_bytes)) for each in session.memory if each.device_bytes]
    points = [*resident, *device]
    steps = sorted(step for step, _ in points)
    if len(steps) < 3 or steps[0] == steps[-1]:
        return None
    top = max(value for _, value in points)
    frame = Frame(Scale(steps[0], steps[-1]), Scale(0.0, 1.08 * top), HEIGHT)
    layer = stretched(
        frame,
        line(frame, thinned(resident, MOST_POINTS), "line-base"),
        line(frame, thinned(device, MOST_POINTS), "line-kept"),
    )
    sentence = _sentence(resident, device)
    picture_ = picture(
        IDENT, TITLE, sentence, frame.full_height, axes(frame, as_count, in_bytes), layer, style="with-axis"
    )
    return Chart(
        IDENT,
        TITLE,
        " ".join([sentence, *(_leak(leak, session.cwd) for leak in session.leaks)]),
        sentence,
        picture_,
        [Key("mark-base", "resident in memory")] * bool(resident) + [Key("mark-kept", "on the device")] * bool(device),
        plain_table(TITLE, ("step", "resident", "device"), "rrr", _rows(session)),
    )


def _sentence(resident: Sequence[Point], device: Sequence[Point]) -> str:
    parts = [
        f"{name} {in_bytes(points[0][1])} at the first step, {in_bytes(points[-1][1])} at the last step, "
        f"{in_bytes(max(value for _, value in points))} at most"
        for name, points in (("Resident:", resident), ("On the device:", device))
        if points
    ]
    return ". ".join(parts) + "."


def _leak(leak: Leak, cwd: str) -> str:
    place = f" at {where(leak.site, cwd)}" if leak.site else ""
    return f"{leak.name}{place} keeps {plural(leak.num_tensors, 'tensor')} alive ({in_bytes(leak.num_bytes)})."


def _rows(session: Session) -> list[list[str]]:
    every = max(1, len(session.memory) // MOST_ROWS)
    return [
        [f"{each.step:,}", in_bytes(each.resident_bytes), in_bytes(each.device_bytes) if each.device_bytes else ""]
        for each in session.memory[::every]
    ]
