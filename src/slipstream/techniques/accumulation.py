"""Trains on the script's whole batch in the memory of a part of it, through the framework's own knob: the loader's
batch is divided by so many, and gradients of so many pieces are accumulated before each update (Lightning's
accumulate_grad_batches, gradient_accumulation_steps of the Hugging Face Trainer and of Accelerate).

Helps where activations fill the memory; nothing is computed twice. Hurts the time: small batches keep a device less
busy. As many updates see the same samples, with clipping and schedules as before; the pieces of a smaller last batch
count by their samples. Dropout draws other numbers, and so do augmentations in workers; without either the weights are
the same but for rounding. Left alone, with the reason: models in which samples touch each other, as in batch norm;
losses that are no mean over samples (a sum, class weights, an average over tokens unless the Trainer divides by their
number itself); loops without a framework. Callbacks, and counters in an Accelerate loop, count pieces.
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
    title="Gradients accumulated by the framework",
    seam="loader",
    causes=(),
    numerics="redrawn",
    memory="less",
    needs=("lightning, transformers or accelerate",),
    claims=("the loader's batch",),
    purpose="memory",
)
VALUES = (2, 4, 8, 16, 32)
_BY_HAND = "the loop is the script's own, and no framework accumulates in it: micro_batches is the answer there"
_KNOBS = {
    "lightning": "Trainer(accumulate_grad_batches={num})",
    "accelerate": "Accelerator(gradient_accumulation_steps={num})",
}


def applies(observation: Observation) -> Answer:
    if not _framework(observation):
        return no(_BY_HAND)
    loader = observation.loader
    if loader is None:
        return no("no DataLoader hands out the batches")
    if loader.is_iterable:
        return no("the data set hands out its samples itself: nothing says where a batch ends")
    if not settings(observation):
        return no(f"a batch of {loader.batch_size} has no two equal halves")
    return YES


def settings(observation: Observation) -> list[Setting]:
    loader = observation.loader
    size = (loader.batch_size or 0) if loader is not None else 0
    return [num for num in VALUES[:3] if size and size % num == 0]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.seams.import_hooks import ImportHooks
    from slipstream.techniques._accumulate import accelerate, lightning, transformers

    num = int(setting)
    in_lightning = lightning.InLightning(context, num)
    in_transformers = transformers.InTransformers(context, num)
    in_accelerate = accelerate.InAccelerate(context, num)

    def ask(optimizer: torch.optim.Optimizer) -> None:
        if not (in_lightning.is_met or in_transformers.is_met or in_accelerate.is_met):
            context.decline(_BY_HAND)

    arrivals = ImportHooks()
    context.patches.on_close(arrivals.close)
    for name in lightning.MODULES:
        arrivals.when_imported(name, in_lightning.install)
    arrivals.when_imported(transformers.MODULE, in_transformers.install)
    arrivals.when_imported(accelerate.MODULE, in_accelerate.install)
    context.on_optimizer(ask)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    loader, framework = observation.loader, _framework(observation)
    site = loader.site if loader is not None else None
    size = (loader.batch_size or 0) if loader is not None else 0
    part = size // int(setting)
    if framework == "transformers" and site is not None:
        wanted = {"per_device_train_batch_size": (part, repr(size)), "gradient_accumulation_steps": (int(setting), "")}
        return [
            Edit("accumulation", "argument", site, "TrainingArguments", name, str(value), observed=seen)
            for name, (value, seen) in wanted.items()
        ]
    text = f"batch_size={part}, {_KNOBS.get(framework, '').format(num=setting)}"
    reason = "the two belong together, and drop_last or a smaller last batch would make other updates"
    return [Edit("accumulation", "by_hand", site, text=text, reason=reason)]


def _framework(observation: Observation) -> str:
    loader, libraries = observation.loader, observation.environment.libraries
    if loader is not None and loader.framework:
        return loader.framework
    return "lightning" if "lightning" in libraries or "pytorch_lightning" in libraries else ""
