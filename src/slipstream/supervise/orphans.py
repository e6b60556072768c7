"""Ends processes that a trial leaves behind. They are found because this process adopts them, and ended by their
ids."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import psutil

from slipstream.sandbox import mounts

_NATURAL_S = 1.0
_PATIENCE_S = 2.0


@contextlib.contextmanager
def no_leftovers() -> Iterator[bool]:
    """Ends, at the end of the block, every descendant of this process that was started inside it. Yields whether this
    process adopts orphans."""
    before = {process.pid for process in _descendants()}
    is_adopting = sys.platform == "linux" and mounts.adopt_orphans(wanted=True)
    try:
        yield is_adopting
    finally:
        end_all([process for process in _descendants() if process.pid not in before])
        if is_adopting:
            mounts.adopt_orphans(wanted=False)


def _descendants() -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = psutil.Process().children(recursive=True)
    except psutil.Error:
        return []
    return found


def end_all(processes: list[psutil.Process]) -> None:
    """Waits a little, then terminates, then kills. The first wait is for multiprocessing's resource tracker: it ends by
    itself after it has removed the shared memory of ended processes. Waiting also removes their entries from the
    process table."""
    _, processes = psutil.wait_procs(processes, timeout=_NATURAL_S)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=_PATIENCE_S)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=_PATIENCE_S)
