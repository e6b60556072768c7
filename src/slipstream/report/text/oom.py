"""What filled the memory when it ran out, in a few lines that are printed below the script's own traceback."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.numbers import in_bytes
from slipstream.records import Remains
from slipstream.report.text.locations import where
from slipstream.report.text.memory import grouped, kind_words

_MOST = 3
_LEAST_SHARE = 0.02


def remains_lines(remains: Remains, cwd: str) -> Iterator[str]:
    total = sum(remains.kinds.values())
    if not total:
        return
    at = f" at {where(remains.site, cwd)}" if remains.site is not None else ""
    inside = f" in {remains.module}" if remains.module else ""
    ranked = sorted(remains.kinds.items(), key=lambda item: -item[1])
    kinds = ", ".join(f"{kind_words(kind)} {in_bytes(size)}" for kind, size in ranked if size >= _LEAST_SHARE * total)
    yield f"memory ran out{at}{inside}, with {in_bytes(total)} in tensors: {kinds}"
    modules = [
        f"{path} ({about}) {in_bytes(held.total())}"
        for path, about, held in grouped(remains.modules)[:_MOST]
        if held.total() >= _LEAST_SHARE * total
    ]
    if modules:
        yield f"most of it by module: {', '.join(modules)}"
    lines = [(line, sum(line.kinds.values())) for line in remains.lines[:_MOST]]
    worth = [f"{where(line.site, cwd)} {in_bytes(size)}" for line, size in lines if size >= _LEAST_SHARE * total]
    if worth:
        yield f"activations by the line that calls the module: {', '.join(worth)}"
