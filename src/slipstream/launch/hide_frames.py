"""Tracebacks as bare python shows them: frames of slipstream are taken out, everything else stays as it was."""

from __future__ import annotations

import dis
import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any

from slipstream.seams.import_hooks import ImportHooks
from slipstream.seams.patching import Patches

_OURS = str(Path(__file__).resolve().parent.parent) + "/"
_LAUNCH = _OURS + "launch/as_main.py"
_NOT_OURS = _OURS + "testing/"  # the zoo's scripts live in our package but are users' scripts


def is_our_file(filename: str) -> bool:
    return filename.startswith(_OURS) and not filename.startswith(_NOT_OURS)


def without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """The same chain of frames less ours. The kept links are the original objects, but for torch's call of a module
    that leads to us: it gets the line it would have without us."""
    links: list[TracebackType] = []
    while trace is not None:
        if not is_our_file(trace.tb_frame.f_code.co_filename):
            links.append(trace)
        elif links and (position := _plain_call(links[-1].tb_frame)) is not None:
            links[-1] = TracebackType(None, links[-1].tb_frame, *position)
        trace = trace.tb_next
    for link, following in zip(links, [*links[1:], None], strict=False):
        link.tb_next = following
    return links[0] if links else None


def _plain_call(frame: FrameType) -> tuple[int, int] | None:
    """Offset and line of `self._call_impl(...)` in torch's Module.__call__, if this is a frame of it: the way that a
    module without our hook takes."""
    code = frame.f_code
    if code.co_name != "_wrapped_call_impl":
        return None
    instructions = list(dis.get_instructions(code))
    named = [at for at, instruction in enumerate(instructions) if instruction.argval == "_call_impl"]
    calls = [i.offset for i in instructions[named[-1] if named else 0 :] if i.opname.startswith("CALL")]
    lines = [line for offset, line in dis.findlinestarts(code) if calls and line and offset <= calls[0]]
    return (calls[0], lines[-1]) if named and lines else None


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


def hide_in_module(arrivals: ImportHooks, patches: Patches) -> None:
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
        return iter(walk(without_our_frames(_copied(trace))))

    return passing


def _copied(trace: TracebackType | None) -> TracebackType | None:
    """A chain of its own: whoever holds the original keeps it whole."""
    if trace is None:
        return None
    return TracebackType(_copied(trace.tb_next), trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def _until_launch(walk: Callable[..., Iterable[Any]]) -> Callable[..., Iterable[Any]]:
    """From the innermost frame outwards, as far as the script goes."""

    @functools.wraps(walk)
    def passing(frame: FrameType | None) -> Iterable[Any]:
        if frame is None:
            return walk(frame)  # it counts callers, and must not count us
        script = itertools.takewhile(lambda item: item[0].f_code.co_filename != _LAUNCH, walk(frame))
        return (item for item in script if not is_our_file(item[0].f_code.co_filename))

    return passing
