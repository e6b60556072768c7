"""How fast one core copies memory: what collating, pinning and handing over are made of."""

from __future__ import annotations

import time
from typing import Final

from slipstream.records import Reading

_CACHES: Final = 256 << 20  # bytes: larger than any cache, so that memory itself is seen


def read_memory(seconds: float, num_bytes: int = _CACHES) -> list[Reading]:
    source, target = bytearray(num_bytes), bytearray(num_bytes)
    view = memoryview(target)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        view[:] = source
        times.append(time.perf_counter() - start)
    rate = num_bytes / min(times) / 1e9
    return [
        Reading(
            "memory_copy", rate, "GB/s", detail=f"one core, {num_bytes >> 20} MB; bytes copied, not read and written"
        )
    ]
