"""The speed test of a computer as a table and sentences, and as JSON. The judgements come from `diagnose`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta
from rich.console import Console
from rich.text import Text

from slipstream.diagnose.speedtest_ranges import general_remarks, judge_machine
from slipstream.numbers import in_percent, in_seconds
from slipstream.records import Environment, Judgement, Reading, SpeedTest
from slipstream.report.terminal.console import ConsoleStyle, styled
from slipstream.report.terminal.footer import hardware
from slipstream.report.terminal.layout import MARGIN, folded, heading, rows

TITLES = {
    "disk_cold": "disk, cold",
    "disk_warm": "disk, warm",
    "disk_files": "small files, cold",
    "decode": "image decode, one core",
    "decode_scaling": "image decode, all cores",
    "memory_copy": "memory copy",
    "process_start": "python start",
    "import_torch": "import torch",
    "copy_pageable": "copy to device, pageable",
    "copy_pinned": "copy to device, pinned",
    "worker_start": "loader worker start",
    "hand_over": "loader hand-over",
}


class ReadingPart(msgspec.Struct, frozen=True):
    name: str
    value: float
    unit: str
    device: str
    detail: str
    usual_low: float | None
    usual_high: float | None
    because: str
    remark: Annotated[str, Meta(description="what looks wrong; empty if nothing does")]


class SpeedTestPart(msgspec.Struct, frozen=True):
    schema: int
    created: str
    seconds: float
    folder: str
    torch: str
    cpu_capability: str
    readings: list[ReadingPart]
    remarks: list[str]
    notes: list[str]
    environment: Environment


def to_json(test: SpeedTest) -> bytes:
    parts = [
        ReadingPart(
            one.reading.name,
            one.reading.value,
            one.reading.unit,
            one.reading.device,
            one.reading.detail,
            one.low,
            one.high,
            one.because,
            one.remark,
        )
        for one in judge_machine(test)
    ]
    document = SpeedTestPart(
        test.schema,
        test.created,
        test.seconds,
        test.folder,
        test.torch_version,
        test.cpu_capability,
        parts,
        remarks(test),
        test.notes,
        test.environment,
    )
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def remarks(test: SpeedTest) -> list[str]:
    """Returns sentences about what looks wrong, without repetitions."""
    found = [*general_remarks(test), *(one.remark for one in judge_machine(test) if one.remark)]
    return list(dict.fromkeys(found))


def title_of(reading: Reading) -> str:
    title = TITLES.get(reading.name, reading.name.replace("multiply_", "matrix multiply, ").replace("_", " "))
    return title if reading.device == "cpu" else f"{title}, {reading.device}"


def value_of(reading: Reading) -> str:
    unit = "" if reading.unit in ("ms", "of one core each") else f" {reading.unit}"
    return f"{_number(reading.value, reading.unit)}{unit}"


def usual_of(one: Judgement) -> str:
    """Returns the usual range without its unit, because the table shows the unit beside it."""
    unit = one.reading.unit
    match one.low, one.high:
        case None, None:
            return ""
        case None, high:
            return f"up to {_number(high or 0.0, unit)}"
        case low, None:
            return f"from {_number(low or 0.0, unit)}"
        case low, high:
            return f"{_number(low or 0.0, unit)} to {_number(high or 0.0, unit)}"
    raise AssertionError("no other case")


def _number(value: float, unit: str) -> str:
    if unit == "ms":
        return in_seconds(value / 1000)
    if unit == "of one core each":
        return f"{in_percent(value)} each"
    return f"{value:,.{0 if value >= 100 or value == int(value) else 1}f}"


def render_machine(test: SpeedTest, console: Console) -> None:
    ink = ConsoleStyle(console)
    for line in _lines(test, ink):
        console.print(line, no_wrap=True, overflow="ignore", crop=False, highlight=False, soft_wrap=True)


def _lines(test: SpeedTest, ink: ConsoleStyle) -> Iterator[Text]:
    yield from folded("machine", [*hardware(test.environment), *(gpu.name for gpu in test.environment.gpus)], ink)
    if test.torch_version:
        yield from folded("", [f"torch {test.torch_version} {test.cpu_capability}"], ink)
    yield Text()
    judged = judge_machine(test)
    headings = [styled(word, "bold") for word in ("", "here", "usual", "")]
    yield from rows([headings, *(_row(one, ink) for one in judged)], "lrll", ink, indent=1)
    yield Text()
    yield from _listed("wrong?", remarks(test) or ["Nothing looks wrong."], ink)
    yield from _listed("notes", test.notes, ink)
    yield heading("took", in_seconds(test.seconds), ink)


def _row(one: Judgement, ink: ConsoleStyle) -> list[Text]:
    mark = styled(ink.clean("◀ look"), "bold red") if one.remark else Text()
    return [ink.text(title_of(one.reading)), ink.text(value_of(one.reading)), ink.text(usual_of(one), "dim"), mark]


def _listed(word: str, sentences: list[str], ink: ConsoleStyle) -> Iterator[Text]:
    for sentence in sentences:
        for number, line in enumerate(ink.wrap(sentence, MARGIN)):
            yield heading(word, "", ink) + line[MARGIN:] if not number else line
            word = ""
