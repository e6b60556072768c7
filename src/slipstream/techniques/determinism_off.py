"""Switches off the deterministic algorithms that the script requests, to measure their cost.

Helps where scatter, interpolation or cuDNN have a faster algorithm that sums in no fixed order. Hurts reproducibility:
two runs no longer agree bit for bit. The technique is therefore timed, but kept only if it is named with `--only`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, no
from slipstream.techniques._core.observation import Observation

if TYPE_CHECKING:
    import torch

    from slipstream.techniques._core.context import ApplyContext

CARD = Card(
    title="Cost of determinism",
    seam="process",
    causes=(),
    numerics="reordered",
    is_opt_in=True,
)


def applies(observation: Observation) -> Answer:
    facts = observation.torch
    if facts is not None and not facts.deterministic:
        return no("the script does not ask for determinism")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    import torch

    def switch_off(module: torch.nn.Module) -> None:
        """Runs at the first call of a model, after the script has made its own settings."""
        is_on, warns_only = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        cudnn = torch.backends.cudnn.deterministic
        if not is_on and not cudnn:
            context.decline("the script does not ask for determinism")
            return
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False
        context.changed("deterministic algorithms on -> off")

        def put_back() -> None:
            torch.use_deterministic_algorithms(is_on, warn_only=warns_only)
            torch.backends.cudnn.deterministic = cudnn

        context.patches.on_close(put_back)

    context.on_model(switch_off)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    return [Edit("determinism_off", "by_hand", None, reason="decide whether two runs must agree bit for bit")]
