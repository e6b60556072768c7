"""Shared code for batches that are copied to a device: which devices can overlap copies with the step, and how a loader
gets pinned memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.techniques._core.card import YES, Answer, already, no
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._core.source_edits import where

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext, LoaderArguments

DEVICES = ("cuda", "xpu")


def has_copies(observation: Observation) -> Answer:
    """Whether the training loader's batches are copied to a device that can overlap copies with the step."""
    if observation.device not in DEVICES:
        return no(
            f"the model is on {observation.device}: copies overlap with the step on CUDA, ROCm or XPU devices only"
        )
    if observation.loader is None:
        return no("the script has no DataLoader")
    # A tensor that is on the device already cannot be pinned.
    if any(facts.device != "cpu" for facts in observation.loader.tensor_facts):
        return already("the loader's batches are on the device already")
    return YES


def lacks_device(context: ApplyContext) -> bool:
    """Whether there is no device that can overlap copies with the step. In that case the technique is declined."""
    from slipstream.observe.torch_facts import read_torch_facts

    if read_torch_facts().accelerator in DEVICES:
        return False
    context.decline("there is no CUDA, ROCm or XPU device here")
    return True


def pin(context: ApplyContext, arguments: LoaderArguments) -> None:
    from slipstream.data.workers.worker_blockers import held_on_device
    from slipstream.seams.user_code import current_site

    if arguments["pin_memory"]:
        return
    device = held_on_device(arguments["dataset"])
    if device:
        context.decline(f"the loader built {where(current_site())} is not pinned: its dataset is on {device} already")
    else:
        arguments["pin_memory"] = True
        context.changed(f"pin_memory False -> True {where(current_site())}")
