"""Opening a page where somebody sits in front of a screen, and nowhere else."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path


def is_desktop(
    environment: Mapping[str, str] = os.environ, platform: str = sys.platform, has_terminal: bool | None = None
) -> bool:
    """A terminal on a desktop: not a pipe, not another machine's, not a build server."""
    if has_terminal is None:
        has_terminal = sys.stdout.isatty()
    if not has_terminal or any(environment.get(name) for name in ("SSH_CONNECTION", "SSH_TTY", "CI")):
        return False
    if platform in ("darwin", "win32"):
        return True
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def open_page(path: Path) -> None:
    """A browser that cannot be started is no reason to fail: the file is there, and its name was printed."""
    try:
        webbrowser.open(path.resolve().as_uri())
    except (webbrowser.Error, OSError):
        return
