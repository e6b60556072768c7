"""Torch's own profile of a few steps, as slices for the session's trace.

The slices have tracks of their own and use the session's clock. With very many slices only the longest are kept. If the
profile file is missing or broken, the trace is written without the profile.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from slipstream.records import TorchProfile
from slipstream.store.decoding import DamagedFileError, one_error
from slipstream.store.safe_files import read_file

FIRST_PROCESS: Final = 10  # the first process id in the trace that stands for a process or device of torch's profile
MOST_SLICES: Final = 60_000
_MOST_BYTES: Final = 1 << 30

Slice = dict[str, Any]
Reader = Callable[[TorchProfile], bytes | None]


class _Event(msgspec.Struct):
    """The fields that are read from an event of a Chrome trace. Ids are numbers or strings."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0  # µs
    dur: float = 0.0


class _Document(msgspec.Struct):
    traceEvents: list[_Event] = []  # noqa: N815, the format's own name


def read_profile(profile: TorchProfile) -> bytes | None:
    """Returns the content of the file that a session names, or None. The session may come from anyone, so the path may
    be a device, and the file may unpack to any size."""
    path = Path(profile.path)
    try:
        data = read_file(path, _MOST_BYTES, may_be_link=True)
        if path.suffix != ".gz":
            return data
        with gzip.open(io.BytesIO(data)) as file:
            unpacked = file.read(_MOST_BYTES + 1)
    except (OSError, EOFError, ValueError, zlib.error):
        return None
    return unpacked if len(unpacked) <= _MOST_BYTES else None


def profile_slices(profile: TorchProfile, data: bytes | None, most: int = MOST_SLICES) -> list[Slice]:
    """Returns slices in nanoseconds of the session's clock. Returns [] if the time mark is missing, because the clocks
    cannot be aligned without it.
    """
    try:
        with one_error():
            events = msgspec.json.decode(data or b"{}", type=_Document).traceEvents
    except DamagedFileError:
        return []
    spans = [event for event in events if event.ph == "X" and isinstance(event.tid, int)]
    mark = next((event for event in spans if event.name == profile.mark), None)
    if mark is None:
        return []
    longest = sorted((event for event in spans if event is not mark), key=lambda event: -event.dur)[:most]
    processes = {pid: FIRST_PROCESS + number for number, pid in enumerate(_processes(longest))}
    return [
        {
            "name": event.name,
            "cat": event.cat,
            "ph": "X",
            "pid": processes[event.pid],
            "tid": event.tid,
            "ts": profile.mark_ns + (event.ts - mark.ts) * 1e3,
            "dur": event.dur * 1e3,
        }
        for event in sorted(longest, key=lambda event: event.ts)
    ]


def _processes(events: list[_Event]) -> list[int | str]:
    """Returns the host first, which is the process with torch's operators, and then the devices."""
    hosts = {event.pid for event in events if event.cat == "cpu_op"}
    return sorted({event.pid for event in events}, key=lambda pid: (pid not in hosts, str(pid)))


def profile_titles(slices: list[Slice]) -> Iterator[Slice]:
    """Yields the names of the tracks. The tracks come after the session's tracks."""
    for process in sorted({one["pid"] for one in slices}):
        within = [one for one in slices if one["pid"] == process]
        is_host = any(one["cat"] == "cpu_op" for one in within)
        name = "torch profiler" if is_host else f"torch profiler, device {process - FIRST_PROCESS - 1}"
        yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": process}}
        for number, thread in enumerate(sorted({one["tid"] for one in within})):
            word = "thread" if is_host else "stream"
            args = {"name": f"{word} {number}"}
            yield {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": args}
