"""Tracebacks as bare python shows them: frames of slipstream are taken out, everything else stays as it was."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any

from slipstream.seams.arrival import Arrivals
from slipstream.seams.patch import Patches

_OURS = str(Path(__file__).resolve().parent.parent) + "/"
_LAUNCH = _OURS + "runner/launch.py"
_NOT_OURS = _OURS + "testing/"  # the zoo's scripts live in our package but are users' scripts


def is_our_file(filename: str) -> bool:
    return filename.startswith(_OURS) and not filename.startswith(_NOT_OURS)


def without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """The same chain of frames less ours. The kept links are the original objects."""
    while trace is not None and is_our_file(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    link = trace
    while link is not None:
        following = link.tb_next
        while following is not None and is_our_file(following.tb_frame.f_code.co_filename):
            following = following.tb_next
        if following is not link.tb_next:
            link.tb_next = following
        link = following
    return trace


def hide_our_frames(error: BaseException) -> None:
    """In an exception and in every other one that it would be printed with."""
    todo: list[BaseException | None] = [error]
    seen: set[int] = set()
    while todo:
        link = todo.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        link.__traceback__ = without_our_frames(link.__traceback__)
        todo += [link.__cause__, link.__context__]
        todo += getattr(link, "exceptions", ())  # exception groups


def hide_in_excepthook() -> None:
    """For an exception that is on its way out of the process: whichever hook is set now gets it without our frames.
    To be called when the script has ended, so that the script never sees a hook of ours."""
    hook = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = hook
        error.__traceback__ = _below_launch(trace)
        hide_our_frames(error)
        sys.last_traceback = error.__traceback__
        _call(hook, kind, error, error.__traceback__)

    sys.excepthook = excepthook


def _below_launch(trace: TracebackType | None) -> TracebackType | None:
    """Without what stands before the script: the command line's own frames, wherever they lie."""
    link = trace
    while link is not None:
        if link.tb_frame.f_code.co_filename == _LAUNCH:
            trace = link.tb_next
        link = link.tb_next
    return trace


def _call(hook: Callable[..., Any], *args: Any) -> None:
    """A hook that fails is printed by python with its own traceback, in which we do not appear either."""
    try:
        hook(*args)
    except BaseException as error:
        hide_our_frames(error)
        raise


def hide_in_module(arrivals: Arrivals, patches: Patches) -> None:
    """For tracebacks that the script, its logger or a loader's worker formats while it rides: the standard library's
    own walk over frames passes ours by."""

    def arrived(module: ModuleType) -> None:
        for name in ("walk_tb", "_walk_tb_with_full_positions"):  # the second: 3.11 and later
            if hasattr(module, name):
                patches.replace(module, name, _without_ours(getattr(module, name)))
        patches.replace(module, "walk_stack", _until_launch(module.walk_stack))

    arrivals.when_imported("traceback", arrived)


def _without_ours(walk: Callable[..., Iterable[Any]]) -> Callable[..., Iterable[Any]]:
    @functools.wraps(walk)
    def passing(trace: TracebackType | None) -> Iterator[Any]:
        return (item for item in walk(trace) if not is_our_file(item[0].f_code.co_filename))

    return passing


def _until_launch(walk: Callable[..., Iterable[Any]]) -> Callable[..., Iterable[Any]]:
    """From the innermost frame outwards, as far as the script goes."""

    @functools.wraps(walk)
    def passing(frame: FrameType | None) -> Iterable[Any]:
        if frame is None:
            return walk(frame)  # it counts callers, and must not count us
        script = itertools.takewhile(lambda item: item[0].f_code.co_filename != _LAUNCH, walk(frame))
        return (item for item in script if not is_our_file(item[0].f_code.co_filename))

    return passing
