"""Counts numbers too small for the normal range of fp32 (below 1.2e-38) as zero, in every thread that computes.

Helps where weights, gradients or activations decay into that range, which CPUs compute many times slower. Hurts only
computations that live there. It is another rounding rule at the very bottom of the range, hence `reordered`: what it
moves is 1e-31 of any number above 1e-7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.records import Edit, Recipe, Setting
from slipstream.techniques._core.card import YES, Answer, Card, no
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
    """Denormals may come as a training converges, long after a check has looked: then its steps grow longer."""
    if not _found_none(observation):
        return no("it was asked before, as any other")
    return _can_be_told(observation) if observation.is_slowing else no("steps do not grow longer")


def _found_none(observation: Observation) -> bool:
    anatomy = observation.session.anatomy
    return anatomy is not None and anatomy.denormal_share == 0.0


def _can_be_told(observation: Observation) -> Answer:
    if observation.device != "cpu":
        return no(f"the model lives on {observation.device}, where denormals cost nothing")
    if observation.torch is not None and observation.torch.flush_denormal:
        return no("the script does it already")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    """The script's thread at once: later threads inherit its mode. Those that run by then: at the first call."""
    import torch

    tiny = torch.tensor(torch.finfo(torch.float32).tiny, dtype=torch.float32, device="cpu")
    if (tiny / 2).item() == 0.0:
        context.decline("they are flushed already")
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
        from slipstream.techniques._core.openmp_pool import run_in_pool, share_that_flushes

        torch.set_flush_denormal(True)
        if run_in_pool(lambda: torch.set_flush_denormal(True)):
            context.patches.on_close(lambda: run_in_pool(lambda: torch.set_flush_denormal(False)))
        share = share_that_flushes()
        if share == 1.0:
            context.changed(f"denormals are zero in {torch.get_num_threads()} threads")
        else:
            context.decline(f"only {share:.0%} of the work is done by threads that could be told")

    context.on_model(reach_all_threads)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    """It counts for threads that are started later: it must stand before the first tensor is computed."""
    return [Edit("flush_denormals", "start", None, text="torch.set_flush_denormal(True)")]
