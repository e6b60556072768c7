"""Makes tracebacks look as under plain Python: removes the frames of slipstream and leaves everything else as it is."""

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
_NOT_OURS = _OURS + "testing/"  # the test scripts are part of the package, but are treated as users' scripts


def is_our_file(filename: str) -> bool:
    return filename.startswith(_OURS) and not filename.startswith(_NOT_OURS)


def without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """Returns the traceback without the frames of slipstream. The remaining links are the original objects, with one
    exception: torch's call of a module that leads to our hook gets the line number that it would have without the
    hook."""
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
    """Returns the offset and line of `self._call_impl(...)` in torch's Module.__call__, if the frame belongs to it. A
    module without our hook is called on that line."""
    code = frame.f_code
    if code.co_name != "_wrapped_call_impl":
        return None
    instructions = list(dis.get_instructions(code))
    named = [at for at, instruction in enumerate(instructions) if instruction.argval == "_call_impl"]
    calls = [i.offset for i in instructions[named[-1] if named else 0 :] if i.opname.startswith("CALL")]
    lines = [line for offset, line in dis.findlinestarts(code) if calls and line and offset <= calls[0]]
    return (calls[0], lines[-1]) if named and lines else None


def hide_our_frames(error: BaseException) -> None:
    """Removes our frames from an exception and from every other exception that is printed with it."""
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
    """Installs an excepthook that removes our frames from an exception and then calls the current hook. Call this only
    when the script has ended, so that the script never sees our hook."""
    hook = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = hook
        error.__traceback__ = _below_launch(trace)
        hide_our_frames(error)
        sys.last_traceback = error.__traceback__
        _call(hook, kind, error, error.__traceback__)

    sys.excepthook = excepthook


def _below_launch(trace: TracebackType | None) -> TracebackType | None:
    """Returns the traceback without the frames above the script, which belong to the command line."""
    link = trace
    while link is not None:
        if link.tb_frame.f_code.co_filename == _LAUNCH:
            trace = link.tb_next
        link = link.tb_next
    return trace


def _call(hook: Callable[..., Any], *args: Any) -> None:
    """Calls the hook. If the hook itself raises, our frames are removed from its exception too, because python prints
    that exception."""
    try:
        hook(*args)
    except BaseException as error:
        hide_our_frames(error)
        raise


def hide_in_module(arrivals: ImportHooks, patches: Patches) -> None:
    """Makes the `traceback` and `inspect` modules skip our frames. This covers tracebacks that the script, its logger
    or a loader's worker formats while the script runs, and scripts that count the frames of `inspect.stack()`."""

    def arrived(module: ModuleType) -> None:
        for name in ("walk_tb", "_walk_tb_with_full_positions"):  # the second: 3.11 and later
            if hasattr(module, name):
                patches.replace(module, name, _without_ours(getattr(module, name)))
        patches.replace(module, "walk_stack", _until_launch(module.walk_stack))

    def inspect_arrived(module: ModuleType) -> None:
        patches.replace(module, "getouterframes", _outer_frames_until_launch(module.getouterframes))

    arrivals.when_imported("traceback", arrived)
    arrivals.when_imported("inspect", inspect_arrived)  # inspect.stack calls getouterframes


def _without_ours(walk: Callable[..., Iterable[Any]]) -> Callable[..., Iterable[Any]]:
    @functools.wraps(walk)
    def passing(trace: TracebackType | None) -> Iterator[Any]:
        return iter(walk(without_our_frames(_copied(trace))))

    return passing


def _outer_frames_until_launch(list_frames: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    @functools.wraps(list_frames)
    def passing(frame: Any, context: int = 1) -> list[Any]:
        script = itertools.takewhile(lambda info: info.frame.f_code.co_filename != _LAUNCH, list_frames(frame, context))
        return [info for info in script if not is_our_file(info.frame.f_code.co_filename)]

    return passing


def _copied(trace: TracebackType | None) -> TracebackType | None:
    """Copies the chain of links, so that the original traceback stays complete."""
    if trace is None:
        return None
    return TracebackType(_copied(trace.tb_next), trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def _until_launch(walk: Callable[..., Iterable[Any]]) -> Callable[..., Iterable[Any]]:
    """Walks from the innermost frame outwards and stops where the script begins."""

    @functools.wraps(walk)
    def passing(frame: FrameType | None) -> Iterable[Any]:
        if frame is None:
            return walk(frame)  # the original finds its caller by depth, so it must be called without a frame of ours
        script = itertools.takewhile(lambda item: item[0].f_code.co_filename != _LAUNCH, walk(frame))
        return (item for item in script if not is_our_file(item[0].f_code.co_filename))

    return passing
