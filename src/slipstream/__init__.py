"""slipstream: makes PyTorch training faster, and proves it. Importing it imports no torch and patches nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.version import VERSION

if TYPE_CHECKING:
    from slipstream.watching import Watching

__version__ = VERSION
__all__ = ["__version__", "watch"]


def watch() -> Watching:
    """Watches the training inside a `with` block, in a program or a notebook:

    with slipstream.watch() as ride:
        train()
    print(ride)
    """
    from slipstream.watching import Watching

    return Watching()
