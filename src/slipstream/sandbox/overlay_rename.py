"""Renaming a directory that lies below an overlay made without privileges: the kernel answers "another device", which
the same call outside would not. Does it the long way then, by copying."""

from __future__ import annotations

import errno
import functools
import os
import shutil
from collections.abc import Callable
from typing import Any


def allow_moving_directories() -> None:
    """For riders of check, whose process is theirs alone."""
    os.rename = _tolerant(os.rename)
    os.replace = _tolerant(os.replace)


def _tolerant(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def move(src: Any, dst: Any, **kwargs: Any) -> None:
        try:
            original(src, dst, **kwargs)
        except OSError as error:
            if error.errno != errno.EXDEV or kwargs or not os.path.isdir(src) or _is_other_device(src, dst):
                raise
            if os.path.lexists(dst):
                os.rmdir(dst)  # as rename: an empty directory gives way, anything else is an error
            shutil.copytree(src, dst, symlinks=True)
            shutil.rmtree(src)

    return move


def _is_other_device(src: Any, dst: Any) -> bool:
    parent = os.path.dirname(os.path.abspath(dst))
    return os.stat(os.path.dirname(os.path.abspath(src))).st_dev != os.stat(parent).st_dev
