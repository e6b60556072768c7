"""Words from forked workers to the process that forked them: each a flag in a page of memory that they share, read when
the next batch arrives, and a sentence if there is more to say. Workers that were spawned share no page; theirs are not
heard."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from slipstream.seams.patching import Patches

_TEXTS_AT, _TEXT_BYTES = 64, 480  # room for eight sentences in a page


class WorkerFlags:
    """Each listener is called once, in the process that made it, after any process raised the flag of its number."""

    def __init__(self, *listeners: Callable[[], None]) -> None:
        self._listeners = listeners
        self._page = mmap.mmap(-1, mmap.PAGESIZE)  # anonymous and shared: a fork keeps it
        self._heard = bytes(len(listeners))
        self._process = os.getpid()

    def install(self, patches: Patches) -> None:
        patches.around(_BaseDataLoaderIter, "__next__", "tidings.batch", None, self._after_batch)

    def raise_flag(self, number: int, text: str = "") -> None:
        if not self._page[number]:
            data, at = text.encode()[:_TEXT_BYTES], _TEXTS_AT + number * _TEXT_BYTES
            self._page[at : at + len(data)] = data
            self._page[number] = 1
            self._listen()

    def text(self, number: int) -> str:
        """What was said when this flag was raised."""
        at = _TEXTS_AT + number * _TEXT_BYTES
        return self._page[at : at + _TEXT_BYTES].rstrip(b"\0").decode(errors="ignore")

    def _after_batch(self, token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._listen()

    def _listen(self) -> None:
        flags = self._page[: len(self._listeners)]
        if flags == self._heard or os.getpid() != self._process:
            return
        news = [number for number, flag in enumerate(flags) if flag and not self._heard[number]]
        self._heard = flags
        for number in news:
            self._listeners[number]()
