"""Changes the number of CPU threads that torch computes with.

Helps where torch starts more threads than can run at once, because of a container's CPU quota or hyper-threads. Fewer
threads also help where DataLoader workers need the cores, or where operations are too small to be split. Hurts where
large operations get fewer cores.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from slipstream.numbers import plural
from slipstream.records import Edit, Recipe, Setting
from slipstream.techniques._core.card import YES, Answer, Card, already, no
from slipstream.techniques._core.observation import Observation

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext

CARD = Card(
    title="Number of CPU threads",
    seam="process",
    causes=("cpu_threads",),
    numerics="reordered",  # A sum is split among the threads.
    work="spread",
)
VALUES = range(1, 257)


def applies(observation: Observation) -> Answer:
    if observation.device != "cpu":
        return no(f"the model is on {observation.device}, not on the CPU")
    if observation.torch is not None and not settings(observation):
        return no(f"there is one core, and the script computes with {plural(observation.torch.num_threads, 'thread')}")
    return YES


def settings(observation: Observation) -> list[Setting]:
    """Returns the number of usable cores, the number of physical cores, half of the usable cores, and one. The script's
    present number is left out."""
    usable, physical = observation.num_cores, observation.environment.num_cores
    now = observation.torch.num_threads if observation.torch else 0
    wanted = [usable, min(usable, physical), max(1, usable // 2), 1]
    return [count for count in dict.fromkeys(wanted) if count != now]


def applies_with(observation: Observation, recipe: Recipe) -> Answer:
    """Whether fewer threads may help together with workers that a recipe adds, because workers need cores of their
    own."""
    if observation.device != "cpu":
        return applies(observation)
    if not recipe.setting_of("workers"):
        return no("the recipe adds no workers that need the cores")
    return YES if settings_with(observation, recipe) else already("the script uses one thread already")


def settings_with(observation: Observation, recipe: Recipe) -> list[Setting]:
    """Returns numbers below the present one: the cores that the workers leave free, half of the cores, and one."""
    usable = observation.num_cores
    now = observation.torch.num_threads if observation.torch else usable
    wanted = [usable - int(recipe.setting_of("workers") or 0), usable // 2, 1]
    return [count for count in dict.fromkeys(max(1, count) for count in wanted) if count < now]


def apply(context: ApplyContext, setting: Setting) -> None:
    import torch

    from slipstream.seams.patching import rewrite_arguments

    count, before, process = int(setting), torch.get_num_threads(), os.getpid()

    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if os.getpid() != process or _is_loader_worker():  # Torch itself sets one thread in a worker.
            return args, kwargs
        context.changed(f"the script's own set_num_threads{args} -> {count}")
        return (count,), {}

    torch.set_num_threads(count)
    context.changed(f"threads {before} -> {count}")
    context.patches.on_close(lambda: torch.set_num_threads(before))
    rewrite_arguments(context.patches, torch, "set_num_threads", "technique.threads", rewrite)


def _is_loader_worker() -> bool:
    """Whether this process is a DataLoader worker. Torch sets the number of threads of a spawned worker before the
    worker info is set, so the worker info alone does not tell."""
    from torch.utils.data import get_worker_info
    from torch.utils.data._utils import worker

    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != worker.__name__:
        frame = frame.f_back
    return frame is not None or get_worker_info() is not None


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    site = observation.torch.threads_site if observation.torch else None
    if site is not None:
        now = str(observation.torch.num_threads) if observation.torch else ""
        text = str(setting)
        return [Edit("cpu_threads", "argument", site, "set_num_threads", argument="int", text=text, observed=now)]
    return [Edit("cpu_threads", "start", None, text=f"torch.set_num_threads({setting})")]
