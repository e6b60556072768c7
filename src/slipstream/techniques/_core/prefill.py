"""Fills a technique's cache before a race. The race then times an epoch with a full cache, like every epoch after the
first. The cache is filled only before the first update, because later the filling itself would be timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext

Fill = Callable[[Any, float], None]  # Takes a loader and a time limit in seconds.


def fill_before_races(context: ApplyContext, fill: Fill) -> None:
    """Calls `fill` once for every dataset whose first epoch begins before the first update of a racing trial."""
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.utils.data import DataLoader

    from slipstream.data.images import prefill

    filled: set[int] = set()
    is_over = False

    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        loader = args[0]
        left_s = prefill.DEADLINE_S - context.once_ns / 1e9  # One limit for all techniques together
        if not context.is_racing or is_over or id(loader.dataset) in filled or left_s <= 0:
            return
        filled.add(id(loader.dataset))
        reason = prefill.cannot_fill(loader)
        if reason:
            context.decline(f"the cache was not filled before the race: {reason}")
            return
        with context.once():
            fill(loader, left_s)

    def after_update(*_: Any) -> None:
        nonlocal is_over
        is_over = True

    seam = f"{context.technique}.fill"
    context.patches.around(DataLoader, "__iter__", seam, before, lambda *_: None)
    hook = context.patches.guard(f"{context.technique}.update", after_update)
    context.patches.on_close(register_optimizer_step_post_hook(hook).remove)
