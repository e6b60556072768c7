"""Splits each batch into pieces and accumulates the gradients of the pieces with the framework's own option. The option
is `accumulate_grad_batches` in Lightning and `gradient_accumulation_steps` in the Hugging Face Trainer and in
Accelerate. The setting is the number of pieces that are accumulated before each update.

Helps where activations fill the memory. Nothing is computed twice. Hurts the step time, because a device is less busy
with small batches.

The number of updates, the samples of each update, gradient clipping and schedules stay the same. The pieces of a
smaller last batch are weighted by their number of samples. Dropout draws other random numbers, and augmentations in
workers may do so too. Without either of them, the weights differ by rounding only. Callbacks count pieces instead of
batches, and so do counters in a loop with Accelerate.

The technique declines in three cases and says why. The first is a model in which samples depend on each other (batch
norm). The second is a loss that is not a mean over samples: a sum, a loss with class weights, or a mean over tokens,
unless the Trainer itself divides by their number. The third is a loop without a framework.
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
_BY_HAND = "no framework runs the training loop, so none can accumulate gradients: try micro_batches instead"
_KNOBS = {
    "lightning": "Trainer(accumulate_grad_batches={num})",
    "accelerate": "Accelerator(gradient_accumulation_steps={num})",
}


def applies(observation: Observation) -> Answer:
    if not _framework(observation):
        return no(_BY_HAND)
    loader = observation.loader
    if loader is None:
        return no("the script has no DataLoader")
    if loader.is_iterable:
        return no("the dataset is iterable, so it is not known where a batch ends")
    if not settings(observation):
        return no(f"a batch of {loader.batch_size} cannot be split into equal pieces")
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
        if not (in_lightning.is_used or in_transformers.is_used or in_accelerate.is_used):
            context.decline(_BY_HAND)

    import_hooks = ImportHooks()
    context.patches.on_close(import_hooks.close)
    for name in lightning.MODULES:
        import_hooks.when_imported(name, in_lightning.install)
    import_hooks.when_imported(transformers.MODULE, in_transformers.install)
    import_hooks.when_imported(accelerate.MODULE, in_accelerate.install)
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
    reason = "change both together. With drop_last or a smaller last batch, the updates differ from those of the script"
    return [Edit("accumulation", "by_hand", site, text=text, reason=reason)]


def _framework(observation: Observation) -> str:
    loader, libraries = observation.loader, observation.environment.libraries
    if loader is not None and loader.framework:
        return loader.framework
    return "lightning" if "lightning" in libraries or "pytorch_lightning" in libraries else ""
