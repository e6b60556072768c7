"""Predicts the peak memory as a function of the batch size. Each phase's peak has a fixed part and a part per sample.
Both are computed from two observed sizes. The largest of the phases' peaks is the peak of the step. A third observed
size gives the error of the prediction."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from slipstream.records import Footprint

_LARGEST = 1 << 40


class Forecast(msgspec.Struct, frozen=True):
    device: str
    observed: dict[int, int]  # batch size to peak bytes
    fixed_bytes: dict[str, float]  # phase to bytes that do not depend on the batch size
    sample_bytes: dict[str, float]  # phase to bytes that one more sample in the batch adds
    error: float | None  # relative error at a third observed size; None: only two sizes were observed
    capacity_bytes: int

    def peak_bytes(self, batch_size: int) -> int:
        return round(max(self.fixed_bytes[phase] + self.sample_bytes[phase] * batch_size for phase in self.fixed_bytes))

    def largest_batch(self, capacity_bytes: int | None = None) -> int:
        """Returns the largest batch that fits, or 0 if none fits or there is no limit."""
        limit = self.capacity_bytes if capacity_bytes is None else capacity_bytes
        if not limit or not any(slope > 0 for slope in self.sample_bytes.values()):
            return 0
        low, high = 0, _LARGEST
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.peak_bytes(middle) <= limit else (low, middle - 1)
        return low


def forecast(footprints: list[Footprint]) -> Forecast | None:
    """Returns the forecast, or None if fewer than two sizes were observed or the sizes are not known."""
    by_size = {footprint.batch_size: footprint for footprint in reversed(footprints) if footprint.batch_size}
    sizes = sorted(by_size, reverse=True)
    if len(sizes) < 2:
        return None
    whole = by_size[sizes[0]]
    fixed, slopes = _fit(whole, by_size[sizes[1]])
    made = Forecast(
        device=whole.device,
        observed={size: by_size[size].peak_bytes for size in sizes},
        fixed_bytes=fixed,
        sample_bytes=slopes,
        error=None,
        capacity_bytes=whole.capacity_bytes,
    )
    if len(sizes) < 3:
        return made
    smaller = msgspec.structs.replace(made, **_named(*_fit(by_size[sizes[1]], by_size[sizes[2]])))
    error = abs(smaller.peak_bytes(sizes[0]) / whole.peak_bytes - 1)
    return msgspec.structs.replace(made, error=error)


def _fit(large: Footprint, small: Footprint) -> tuple[dict[str, float], dict[str, float]]:
    fixed: dict[str, float] = {}
    slopes: dict[str, float] = {}
    for phase in large.phases:
        if phase in small.phases:
            most, least = sum(large.phases[phase].values()), sum(small.phases[phase].values())
            slopes[phase] = max(0.0, (most - least) / (large.batch_size - small.batch_size))
            fixed[phase] = most - slopes[phase] * large.batch_size
    return fixed, slopes


def _named(fixed: Mapping[str, float], slopes: Mapping[str, float]) -> dict[str, Mapping[str, float]]:
    return {"fixed_bytes": fixed, "sample_bytes": slopes}
