"""Compiles the models that the script trains. A compiled model runs fused kernels instead of single operations that
Python calls.

Helps where many small operations are launched one by one, or where most of the time goes into reading and writing their
results in memory. Hurts where shapes change often, because each new shape may be compiled again. Hurts short trainings
too, because compiling takes from seconds to minutes.

Evaluation is not compiled, because it would need a second compilation and could change the numbers that the script
reports. State dicts keep their names, because the module is not replaced. Code that cannot be compiled runs as before.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import TYPE_CHECKING

from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, already, no
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._core.source_edits import model_edit, why_by_hand

if TYPE_CHECKING:
    import torch

    from slipstream.techniques._core.context import ApplyContext

CARD = Card(
    title="Compiled models",
    seam="module",
    causes=("tiny_operations",),
    numerics="reordered",
    needs=("a C++ compiler",),
    # The compiler fuses attention in its own way and cannot trace the code that other techniques add to the model.
    claims=("attention kernels", "the model's graph", "recomputation"),
    needs_proof=True,  # Compiled dropout draws other random numbers.
    is_slow_to_start=True,
    nesting=0,
)
VALUES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs")


def applies(observation: Observation) -> Answer:
    model = observation.model
    if model is not None and model.is_compiled:
        return already("the script compiles the model already")
    if observation.device == "mps":
        return no("compiling for Apple's GPUs does not support training yet")
    if observation.device == "cpu" and not _has_compiler():
        return no("there is no C++ compiler (g++ or clang++) on this machine")
    if observation.device != "cpu" and importlib.util.find_spec("triton") is None:
        return no("triton, which makes the kernels for this device, is not installed")
    return YES


def settings(observation: Observation) -> list[Setting]:
    if observation.device == "cuda":
        return ["default", "reduce-overhead", "max-autotune-no-cudagraphs"]
    return ["default", "max-autotune-no-cudagraphs"]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.techniques._models.compiled import Compiled, configure

    mode = "default" if setting is True else str(setting)

    def change(module: torch.nn.Module) -> None:
        if context.is_compiled(module):
            context.decline(f"the script compiles {type(module).__name__} itself")
            return
        configure(context)
        context.wrap_call(module, Compiled(context, module, mode).call)

    context.on_model(change)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    model = observation.model
    mode = "" if setting in (True, "default") else f'mode="{setting}"'
    if model is not None and not model.class_module.startswith("torch."):
        return [model_edit(observation, "compile", f"{{model}}.compile({mode})")]
    name = model.name if model is not None and model.name else "model"
    value = f"torch.compile({', '.join(filter(None, (name, mode)))})"
    site, built = model.site if model else None, observation.optimizer.site if observation.optimizer else None
    is_alone = not why_by_hand(observation)
    if is_alone and model is not None and model.name and site and built and site.function == built.function:
        return [Edit("compile", "callee", site, call=name, argument=value, text="compiled")]
    reason = "compile() has no effect on a module class of torch: call `compiled` instead of the model in training"
    return [Edit("compile", "by_hand", site, text=f"compiled = {value}", reason=reason)]


def _has_compiler() -> bool:
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++", "cl"))
