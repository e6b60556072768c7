"""slipstream: makes PyTorch training faster, and proves it. Importing it imports no torch and patches nothing."""

from __future__ import annotations

from slipstream.startup_modules import STARTUP_MODULES as STARTUP_MODULES  # isort: skip - first, before typing

from typing import TYPE_CHECKING, Any

from slipstream.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipstream.data.dataloader import DataLoader as DataLoader
    from slipstream.workflows.tune import Tuned
    from slipstream.workflows.watch import Watch

__version__ = VERSION
__all__ = ["DataLoader", "__version__", "tune", "watch"]


def watch() -> Watch:
    """Observes the training inside a `with` block, in a program or a notebook, and returns a `Watch`:

    with slipstream.watch() as watch:
        train()
    print(watch)
    """
    from slipstream.workflows.watch import Watch

    return Watch()


def tune(function: Callable[..., Any], **options: Any) -> Tuned:
    """Tries techniques on a training function, in a program or a notebook, and writes slipstream.toml:

    tuned = slipstream.tune(train, budget="5m")
    tuned                                           # the table
    slipstream.tune(functools.partial(train, epochs=3))

    The options are those of the command: budget, only, without, allow, seconds (of the check), recipe (a path), quiet.
    The function runs many times, each time from its first line in a process of its own. It must not ask for input. In
    a notebook, everything that it needs must come from ordinary cells (docs/notebooks.md).
    """
    from slipstream.workflows.tune import tune_function

    return tune_function(function, **options)


def __getattr__(name: str) -> Any:
    """Imports `slipstream.DataLoader` on first use: it is a subclass of torch's, and `import slipstream` imports no
    torch."""
    if name == "DataLoader":
        from slipstream.data.dataloader import DataLoader

        return DataLoader
    raise AttributeError(f"module 'slipstream' has no attribute {name!r}")
