"""Flags that forked workers raise for the process that forked them.

Each flag is a byte in a shared page of memory, and may have a short text. The main process reads the flags when the
next batch arrives. Spawned workers share no page, so their flags are not received."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from slipstream.seams.patching import Patches

_TEXTS_AT, _TEXT_BYTES = 64, 480  # a page holds eight texts


class WorkerFlags:
    """One flag for each listener. A listener is called once, after any process has raised the listener's flag. It is
    called in the process that created this object."""

    def __init__(self, *listeners: Callable[[], None]) -> None:
        self._listeners = listeners
        self._page = mmap.mmap(-1, mmap.PAGESIZE)  # anonymous and shared with forked processes
        self._handled = bytes(len(listeners))
        self._process = os.getpid()

    def install(self, patches: Patches) -> None:
        patches.around(_BaseDataLoaderIter, "__next__", "worker_flags.batch", None, self._after_batch)

    def raise_flag(self, number: int, text: str = "") -> None:
        if not self._page[number]:
            data, at = text.encode()[:_TEXT_BYTES], _TEXTS_AT + number * _TEXT_BYTES
            self._page[at : at + len(data)] = data
            self._page[number] = 1
            self._call_listeners()

    def text(self, number: int) -> str:
        """Returns the text that was given when this flag was raised."""
        at = _TEXTS_AT + number * _TEXT_BYTES
        return self._page[at : at + _TEXT_BYTES].rstrip(b"\0").decode(errors="ignore")

    def _after_batch(self, token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._call_listeners()

    def _call_listeners(self) -> None:
        flags = self._page[: len(self._listeners)]
        if flags == self._handled or os.getpid() != self._process:
            return
        raised = [number for number, flag in enumerate(flags) if flag and not self._handled[number]]
        self._handled = flags
        for number in raised:
            self._listeners[number]()
