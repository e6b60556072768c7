"""Treats numbers below the normal range of fp32 (below 1.2e-38) as zero in every thread that computes.

Helps where weights, gradients or activations become that small, because CPUs compute many times slower with such
numbers. Hurts only computations that need numbers of that size. The numerics class is `reordered`, because the change
is smaller than rounding: at most 1.2e-31 of any number above 1e-7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.numbers import in_percent, plural
from slipstream.records import Edit, Recipe, Setting
from slipstream.techniques._core.card import YES, Answer, Card, already, no
from slipstream.techniques._core.observation import Observation

if TYPE_CHECKING:
    import torch

    from slipstream.techniques._core.context import ApplyContext

CARD = Card(title="Denormal numbers as zero", seam="process", causes=("denormals",), numerics="reordered")


def applies(observation: Observation) -> Answer:
    if _found_none(observation):
        return no("no denormal number was found in parameters, gradients or activations")
    return _can_be_told(observation)


def applies_with(observation: Observation, recipe: Recipe) -> Answer:
    """Whether the technique applies although the check found no denormals. They may appear later, as a training
    converges, and steps then become slower."""
    if not _found_none(observation):
        return no("the technique was already considered together with the others")
    return _can_be_told(observation) if observation.is_slowing else no("steps do not become slower")


def _found_none(observation: Observation) -> bool:
    anatomy = observation.session.anatomy
    return anatomy is not None and anatomy.denormal_share == 0.0


def _can_be_told(observation: Observation) -> Answer:
    if observation.device != "cpu":
        return no(f"the model is on {observation.device}, where denormals are not slower")
    if observation.torch is not None and observation.torch.flush_denormal:
        return already("the script flushes denormals already")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    """Sets the mode of the script's thread at once, because later threads inherit it. Threads that already run get the
    mode at the first call of a model."""
    import torch

    tiny = torch.tensor(torch.finfo(torch.float32).tiny, dtype=torch.float32, device="cpu")
    if (tiny / 2).item() == 0.0:
        context.decline("denormals are already flushed")
        return
    if not torch.set_flush_denormal(True):
        context.decline("this CPU cannot flush denormals")
        return
    context.patches.on_close(lambda: torch.set_flush_denormal(False))
    is_done = False

    def reach_all_threads(module: torch.nn.Module) -> None:
        nonlocal is_done
        if is_done:
            return
        is_done = True
        from slipstream.data.threads.openmp import run_in_pool, share_that_flushes

        torch.set_flush_denormal(True)
        if run_in_pool(lambda: torch.set_flush_denormal(True)):
            context.patches.on_close(lambda: run_in_pool(lambda: torch.set_flush_denormal(False)))
        share = share_that_flushes()
        if share == 1.0:
            context.changed(f"denormals are zero in {plural(torch.get_num_threads(), 'thread')}")
        else:
            context.decline(f"only {in_percent(share)} of the work runs in threads whose mode could be set")

    context.on_model(reach_all_threads)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    """Returns an edit that makes the call at the start of the script. The mode applies to threads that start later, so
    the call must come before the first computation."""
    return [Edit("flush_denormals", "start", None, text="torch.set_flush_denormal(True)")]
