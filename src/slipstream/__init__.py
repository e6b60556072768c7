"""slipstream: makes PyTorch training faster, and proves it. Importing it imports no torch and patches nothing."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from slipstream.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipstream.data.self_tuning import DataLoader as DataLoader
    from slipstream.tuning import Tuned
    from slipstream.watching import Watching

__version__ = VERSION
__all__ = ["__version__", "tune", "watch"]


def watch() -> Watching:
    """Watches the training inside a `with` block, in a program or a notebook:

    with slipstream.watch() as ride:
        train()
    print(ride)
    """
    from slipstream.watching import Watching

    return Watching()


def tune(function: Callable[..., Any], **options: Any) -> Tuned:
    """Races techniques on a training function, in a program or a notebook, and writes slipstream.toml:

    tuned = slipstream.tune(train, budget="5m")
    tuned                                           # the table
    slipstream.tune(functools.partial(train, epochs=3))

    Options are those of the command: budget, only, without, allow, seconds (of the check), recipe (a path), quiet. The
    function runs in processes of its own, from its first line, many times: it should take no input, and in a notebook
    all that it needs must come from ordinary cells. docs/notebooks.md says more.
    """
    from slipstream.tuning import tune_function

    return tune_function(function, **options)


def __getattr__(name: str) -> Any:
    """`slipstream.DataLoader` is a torch class: made when it is asked for, so that importing us imports no torch."""
    if name == "DataLoader":
        from slipstream.data.self_tuning import DataLoader

        return DataLoader
    raise AttributeError(f"module 'slipstream' has no attribute {name!r}")


class _CallableRoom(ModuleType):
    __call__ = staticmethod(tune)


class _Package(ModuleType):
    """`slipstream.tune` is a function for users and a room of ours. Importing anything from the room binds the room to
    the name, so the room answers to a call as the function does."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "tune" and type(value) is ModuleType:
            value.__class__ = _CallableRoom
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
