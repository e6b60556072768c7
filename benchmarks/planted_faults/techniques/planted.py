"""Plants one fault in a training, from outside. The setting names the fault, and after
"@" what trials count as a step. Not a technique: only
benchmarks/numerics_errors.py uses it, to test whether the numerics check notices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import Answer, Card, no
from slipstream.techniques._core.observation import Observation

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext

CARD = Card(title="A planted fault", seam="process", causes=(), numerics="different", nesting=90)
LOSS_SCALE = 1024.0  # that is not undone, or not undone before clipping
SKIPPED_BATCH, REPEATED_BATCH = 12, 7  # counted from 0: after the steps whose gradients are recorded
TARGETS = ("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss")
PROBABILITIES = ("binary_cross_entropy", "binary_cross_entropy_with_logits")


def applies(observation: Observation) -> Answer:
    return no("it is a fault")


def settings(observation: Observation) -> list[Setting]:
    return []


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    return []


def apply(context: ApplyContext, setting: Setting) -> None:
    fault, _, tick = str(setting).partition("@")
    name, _, argument = fault.partition("=")
    by_hand = tick == "backward"
    plant = {
        "gradients_scaled": lambda: _scale_gradients(context, float(argument), by_hand),
        "gradient_dropped": lambda: _drop_gradient(context, by_hand),
        "labels_shifted": lambda: _shift_labels(context),
        "batch_skipped": lambda: _change_batches(context, SKIPPED_BATCH, is_skipped=True),
        "batch_repeated": lambda: _change_batches(context, REPEATED_BATCH, is_skipped=False),
        "statistics_twice": lambda: _change_statistics(context, is_frozen=False),
        "statistics_frozen": lambda: _change_statistics(context, is_frozen=True),
        "dropout_off": lambda: _change_dropout(context, 0.0),
        "dropout_doubled": lambda: _change_dropout(context, 2.0),
        "weight_decay_lost": lambda: _lose_weight_decay(context),
        "scale_not_undone": lambda: _scale_gradients(context, LOSS_SCALE, by_hand),
        "fp16_unscaled": lambda: _compute_in_fp16(context),
        "clipped_scaled": lambda: _clip_scaled(context),
    }[name]
    plant()


# --- gradients --------------------------------------------------------------------------------------------------------


def _scale_gradients(context: ApplyContext, factor: float, is_by_hand: bool) -> None:
    """Scales the gradients that the update uses: after clipping and accumulation, before the optimizer's step."""

    def scale(parameters: list[Any]) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    _before_updates(context, scale, is_by_hand)


def _drop_gradient(context: ApplyContext, is_by_hand: bool) -> None:
    """Makes the gradient of one layer in the middle zero."""

    def drop(parameters: list[Any]) -> None:
        weights = [one for one in parameters if one.grad is not None and one.ndim > 1]
        weights = weights or [one for one in parameters if one.grad is not None]
        if weights:
            weights[len(weights) // 2].grad.zero_()

    _before_updates(context, drop, is_by_hand)


def _before_updates(context: ApplyContext, change: Any, is_by_hand: bool) -> None:
    """Calls `change` with the parameters before each update. `is_by_hand`: the script has no optimizer, so it is called
    with those of all models after each backward pass."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def before(optimizer: Any, args: Any, kwargs: Any) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        context.changed("gradients before an update")
        if not callable(closure):
            with torch.no_grad():
                change(parameters)
            return None

        def changed(*inner: Any, **named: Any) -> Any:
            result = closure(*inner, **named)
            with torch.no_grad():
                change(parameters)
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": changed}
        return (args[0], changed, *args[2:]), kwargs

    if not is_by_hand:
        context.patches.on_close(register_optimizer_step_pre_hook(before).remove)
        return
    modules: list[Any] = []
    context.on_model(modules.append)
    backward = torch.autograd.backward

    def followed(*args: Any, **kwargs: Any) -> None:
        backward(*args, **kwargs)
        context.changed("gradients after a backward pass")
        with torch.no_grad():
            change([parameter for module in modules for parameter in module.parameters()])

    context.patches.replace(torch.autograd, "backward", followed)


def _clip_scaled(context: ApplyContext) -> None:
    """Clips gradients that are still scaled, and undoes the scale afterwards."""
    import torch

    def wrap(clip: Any) -> Any:
        def clipped(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            context.changed("clipping")
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            for gradient in gradients:
                gradient.mul_(LOSS_SCALE)
            result = clip(parameters, *args, **kwargs)
            for gradient in gradients:
                gradient.div_(LOSS_SCALE)
            return result

        return clipped

    for name in ("clip_grad_norm_", "clip_grad_value_"):
        context.patches.replace(torch.nn.utils, name, wrap(getattr(torch.nn.utils, name)))


# --- data -------------------------------------------------------------------------------------------------------------


def _shift_labels(context: ApplyContext) -> None:
    """Gives every sample the label of its neighbour. The loss functions see it, in training only."""
    import torch
    from torch.nn import functional

    def wrap(loss: Any, change: Any) -> Any:
        def shifted(predicted: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled() and isinstance(target, torch.Tensor):
                context.changed("targets of a loss")
                target = change(target)
            return loss(predicted, target, *args, **kwargs)

        return shifted

    for name in TARGETS:
        context.patches.replace(functional, name, wrap(getattr(functional, name), lambda target: target.roll(1, 0)))
    for name in PROBABILITIES:
        context.patches.replace(functional, name, wrap(getattr(functional, name), lambda target: 1 - target))


def _change_batches(context: ApplyContext, number: int, is_skipped: bool) -> None:
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    original = _BaseDataLoaderIter.__next__
    seen: list[Any] = [0, None]  # number of batches, the last one

    def following(self: Any) -> Any:
        if seen[0] == number and not is_skipped and seen[1] is not None:
            seen[0] += 1
            context.changed("a batch repeated")
            return seen[1]
        batch = original(self)
        if seen[0] == number and is_skipped:
            context.changed("a batch skipped")
            batch = original(self)
        seen[0] += 1
        seen[1] = batch if not is_skipped else None
        return batch

    context.patches.replace(_BaseDataLoaderIter, "__next__", following)


# --- layers -----------------------------------------------------------------------------------------------------------


def _change_statistics(context: ApplyContext, is_frozen: bool) -> None:
    """Updates the running statistics of batch norms twice, or not at all."""
    import torch
    from torch.nn import functional

    normalise = functional.batch_norm

    def changed(x: Any, mean: Any = None, var: Any = None, *args: Any, **kwargs: Any) -> Any:
        is_training = args[2] if len(args) > 2 else kwargs.get("training", False)
        if mean is None or not is_training:
            return normalise(x, mean, var, *args, **kwargs)
        context.changed("running statistics")
        if is_frozen:
            return normalise(x, mean.clone(), var.clone(), *args, **kwargs)
        with torch.no_grad():
            normalise(x.detach(), mean, var, *args, **kwargs)
        return normalise(x, mean, var, *args, **kwargs)

    context.patches.replace(functional, "batch_norm", changed)


def _change_dropout(context: ApplyContext, factor: float) -> None:
    from torch.nn import functional

    def wrap(drop: Any) -> Any:
        def changed(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
            if training and p:
                context.changed("dropout")
                p = min(0.9, factor * p)
            return drop(x, p, training, inplace)

        return changed

    attention = functional.scaled_dot_product_attention

    def attend(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *a: Any, **k: Any
    ) -> Any:
        if dropout_p:
            context.changed("dropout of attention")
        return attention(query, key, value, attn_mask, min(0.9, factor * dropout_p), *a, **k)

    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d"):
        context.patches.replace(functional, name, wrap(getattr(functional, name)))
    context.patches.replace(functional, "scaled_dot_product_attention", attend)


def _lose_weight_decay(context: ApplyContext) -> None:
    def lose(optimizer: Any) -> None:
        for group in optimizer.param_groups:
            if group.get("weight_decay"):
                context.changed("weight decay")
                group["weight_decay"] = 0.0

    context.on_optimizer(lose)


def _compute_in_fp16(context: ApplyContext) -> None:
    """Autocast to fp16 without a loss scale."""
    import torch
    from torch.utils import _pytree as pytree

    def to_fp32(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and value.dtype is torch.float16 else value

    def change(module: torch.nn.Module) -> None:
        def cast(call: Any, *args: Any, **kwargs: Any) -> Any:
            if not (module.training and torch.is_grad_enabled()) or torch.is_autocast_enabled("cpu"):
                return call(*args, **kwargs)
            context.changed("autocast to fp16")
            with torch.autocast("cpu", dtype=torch.float16):
                result = call(*args, **kwargs)
            return pytree.tree_map(to_fp32, result)

        context.wrap_call(module, cast)

    context.on_model(change)
