"""Utilisation and power of the GPUs over time, as sampled while the script ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipstream.numbers import in_bytes, in_percent, in_seconds
from slipstream.records import GpuReading, Session
from slipstream.report.html.chart import Chart, Key, plain_table
from slipstream.report.html.svg import Frame, Scale, axes, line, picture, stretched, thinned

HEIGHT = 130.0
MOST_POINTS = 600
MOST_ROWS = 100
MOST_GPUS = 4  # lines in one chart

Read = Callable[[GpuReading], float]


def device_charts(session: Session) -> list[Chart]:
    readings = session.environment.readings
    if len({reading.time_ns for reading in readings}) < 2:
        return []
    charts = [
        _chart("utilisation", "GPU utilisation over time", readings, lambda each: each.utilisation, in_percent, 1.0)
    ]
    if any(reading.power_w > 0 for reading in readings):
        charts.append(_chart("power", "GPU power over time", readings, lambda each: each.power_w, _watts, 0.0))
    return charts


def _watts(value: float) -> str:
    return f"{value:.0f} W"


def _chart(
    ident: str, title: str, readings: Sequence[GpuReading], read: Read, say: Callable[[float], str], least: float
) -> Chart:
    start_ns = min(reading.time_ns for reading in readings)
    end_s = (max(reading.time_ns for reading in readings) - start_ns) / 1e9
    values = [read(reading) for reading in readings]
    frame = Frame(Scale(0.0, end_s), Scale(0.0, max(1.08 * max(values), least, 1e-9)), HEIGHT)
    numbers = sorted({reading.index for reading in readings})[:MOST_GPUS]
    lines = []
    for number in numbers:
        points = [((one.time_ns - start_ns) / 1e9, read(one)) for one in readings if one.index == number]
        lines.append(line(frame, thinned(points, MOST_POINTS), f"line-gpu-{number % MOST_GPUS}"))
    sentence = f"{say(sum(values) / len(values))} on average, {say(max(values))} at most."
    grid = axes(frame, lambda at: in_seconds(at) if at else "0", say)
    return Chart(
        ident,
        title,
        sentence,
        sentence,
        picture(ident, title, sentence, frame.full_height, grid, stretched(frame, *lines), style="with-axis"),
        [Key(f"mark-gpu-{number % MOST_GPUS}", f"GPU {number}") for number in numbers] if len(numbers) > 1 else [],
        plain_table(title, ("at", "GPU", "utilisation", "memory", "power"), "rrrrr", _rows(readings, start_ns)),
    )


def _rows(readings: Sequence[GpuReading], start_ns: int) -> list[list[str]]:
    every = max(1, len(readings) // MOST_ROWS)
    return [
        [
            in_seconds((reading.time_ns - start_ns) / 1e9),
            str(reading.index),
            in_percent(reading.utilisation),
            in_bytes(reading.memory_bytes),
            _watts(reading.power_w),
        ]
        for reading in readings[::every]
    ]
