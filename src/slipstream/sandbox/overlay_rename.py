"""Makes renaming of directories work in an overlay that was mounted without privileges. For a directory of the lower
layer the kernel reports "another device", which it does not do outside the overlay. This module then copies the
directory."""

from __future__ import annotations

import errno
import functools
import os
import shutil
from collections.abc import Callable
from typing import Any


def allow_moving_directories() -> None:
    """Patches os.rename and os.replace. Only for processes of trials, because the patches are not removed."""
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
                os.rmdir(dst)  # like rename: an empty directory is replaced, anything else is an error
            shutil.copytree(src, dst, symlinks=True)
            shutil.rmtree(src)

    return move


def _is_other_device(src: Any, dst: Any) -> bool:
    parent = os.path.dirname(os.path.abspath(dst))
    return os.stat(os.path.dirname(os.path.abspath(src))).st_dev != os.stat(parent).st_dev
