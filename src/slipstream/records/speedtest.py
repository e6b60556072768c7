"""The speed of this computer, as `slipstream machine` measured it."""

from __future__ import annotations

import msgspec

from slipstream.records.environment import Environment

SPEEDTEST_SCHEMA = 1


class Reading(msgspec.Struct, frozen=True):
    name: str  # "disk_cold", "multiply_bf16"
    value: float
    unit: str  # "MB/s", "images/s", "GFLOP/s", "ms"
    device: str = "cpu"
    detail: str = ""  # what the measurement used: sizes, number of processes


class SpeedTest(msgspec.Struct, frozen=True):
    created: str  # ISO 8601
    environment: Environment
    readings: list[Reading]
    seconds: float  # duration of the test
    folder: str = ""  # a folder on the disk that was measured
    torch_version: str = ""
    cpu_capability: str = ""  # AVX2, AVX512, ... as torch calls it
    notes: list[str] = []  # what could not be measured, and why
    schema: int = SPEEDTEST_SCHEMA

    def reading(self, name: str, device: str = "cpu") -> Reading | None:
        return next((one for one in self.readings if (one.name, one.device) == (name, device)), None)


class Judgement(msgspec.Struct, frozen=True):
    """A reading compared with the usual range for such hardware."""

    reading: Reading
    low: float | None  # lower end of the usual range, in the reading's unit; None: the range has no such end
    high: float | None  # upper end of the usual range
    because: str  # why this range is usual; "": not known
    remark: str = ""  # what looks wrong, and what follows from it; "": nothing looks wrong
