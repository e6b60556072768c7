"""Adds marks to the profiler's trace during the observed steps: which module runs, which line of the user's code called
torch, and when addresses got names. The marks change no value and draw no random number. They are removed completely.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn, overrides
from torch._C._profiler import _RecordFunctionFast as Range
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from slipstream.memory.address_names import AddressNames
from slipstream.memory.allocations import LINE, SNAP, Name
from slipstream.observe.anatomy.modules import ModuleEntry
from slipstream.observe.anatomy.trace import MODULE
from slipstream.records import Site
from slipstream.seams.user_code import make_site, user_frame


class LineMarks(TorchFunctionMode):
    """Marks every call into torch with the user's line."""

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[tuple[str, int, str], int] = {}
        self.is_on = True

    def sites(self) -> list[Site]:
        return [make_site(*place) for place in self._places]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        # Reading a shape is a call too, but allocates nothing. A call that opens a range of the profiler gets no mark,
        # because the opened range would end together with the range of the mark.
        if not self.is_on or name == "__get__" or "_record_function" in name:
            return func(*args, **kwargs)
        index = self._index()
        if index < 0:
            return func(*args, **kwargs)
        with Range(f"{LINE}{index}"):
            return func(*args, **kwargs)

    def _index(self) -> int:
        frame = user_frame(sys._getframe(2))
        if frame is None:
            return -1
        place = (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        return self._places.setdefault(place, len(self._places))

    def enter(self) -> None:
        enter: Any = super().__enter__
        enter()

    def leave(self) -> None:
        """Leaves the mode, even if the script has entered another mode meanwhile."""
        self.is_on = False
        stack: Any = overrides
        if self not in stack._get_current_function_mode_stack():
            return
        above = []
        while (mode := stack._pop_mode()) is not self:
            above.append(mode)
        for mode in reversed(above):
            stack._push_mode(mode)


class TraceMarks:
    """Call `start` and `stop` in the thread that runs the script."""

    def __init__(self, entries: list[ModuleEntry], names: AddressNames, *, with_lines: bool) -> None:
        self.snaps: list[list[Name]] = []
        # Maps a module to the snap of its last return and to the addresses that it returned.
        self.outputs: dict[int, tuple[int, list[int]]] = {}
        self._entries = entries
        self._names = names
        self._lines = LineMarks() if with_lines else None
        self._open: list[tuple[int, Any]] = []
        self._thread = 0
        self._undo = ExitStack()

    def start(self) -> None:
        self._thread = threading.get_ident()
        self._undo.callback(self._close_down_to, 0)
        try:
            for index, entry in enumerate(self._entries):
                self._hook(index, entry.module)
            self._undo.callback(register_optimizer_step_pre_hook(self._before_update).remove)
            if self._lines is not None:
                self._lines.enter()
                self._undo.callback(self._lines.leave)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self._undo.close()

    def sites(self) -> list[Site]:
        return self._lines.sites() if self._lines is not None else []

    def snap(self, names: Iterable[Name]) -> int:
        """Records the names of addresses at this moment, and returns the number of the snap."""
        with torch._C.DisableTorchFunction(), Range(f"{SNAP}{len(self.snaps)}"):
            self.snaps.append(list(names))
        return len(self.snaps) - 1

    def _hook(self, index: int, module: nn.Module) -> None:
        before: Callable[..., None] = lambda *_: self._enter(index)  # noqa: E731
        after: Callable[..., None] = lambda _module, _args, output: self._leave(index, output)  # noqa: E731
        self._undo.callback(module.register_forward_pre_hook(before, prepend=True).remove)
        # always_call: the range must also be closed if the forward raises and the script catches the exception.
        self._undo.callback(module.register_forward_hook(after, always_call=True).remove)

    def _enter(self, index: int) -> None:
        if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
            return
        opened = Range(f"{MODULE}{index}")
        opened.__enter__()
        self._open.append((index, opened))

    def _leave(self, index: int, output: Any) -> None:
        if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
            return
        with torch._C.DisableTorchFunction():
            self.outputs[index] = (self.snap(()), [name.address for name in self._names.inputs(output)])
        for depth in range(len(self._open) - 1, -1, -1):
            if self._open[depth][0] == index:
                self._close_down_to(depth)
                return

    def _close_down_to(self, depth: int) -> None:
        while len(self._open) > depth:
            self._open.pop()[1].__exit__(None, None, None)

    def _before_update(self, *_: Any) -> None:
        """Names the gradients just before an update, because the script may free the gradients afterwards."""
        if threading.get_ident() == self._thread:
            self.snap(self._names.gradients())
