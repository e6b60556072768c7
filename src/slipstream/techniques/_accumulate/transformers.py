"""Gradient accumulation in the Hugging Face Trainer. During one train() the loader's batches are divided and
gradient_accumulation_steps is multiplied. With some models the Trainer divides the loss by the number of labels in an
update. With other models, pieces are weighted by their number of samples. The changes are undone when train() ends."""

from __future__ import annotations

from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any

from slipstream.seams.batches import count_samples
from slipstream.techniques._accumulate.loss_reduction import fetch_few, refuse_mixing, try_losses
from slipstream.techniques._accumulate.split_loader import divide, restore
from slipstream.techniques._recompute.record_random import RefusedError

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext

MODULE = "transformers.trainer"
_DIVISOR = "current_gradient_accumulation_steps"
_METHODS = ("get_train_dataloader", "get_batch_samples", "training_step")


class InTransformers:
    def __init__(self, context: ApplyContext, num_pieces: int) -> None:
        self._context = context
        self._num_pieces = num_pieces
        self.is_used = False

    def install(self, module: ModuleType) -> None:
        trainer = vars(module)["Trainer"]
        self._context.patches.around(trainer, "train", "accumulation.train", self._before, self._after, self._abandon)

    def _before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Training | None:
        self.is_used = True
        trainer = args[0]
        try:
            _refuse(trainer)
        except RefusedError as refusal:
            self._context.decline(str(refusal))
            return None
        return _Training(self._context, trainer, self._num_pieces)

    def _after(self, token: _Training | None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._abandon(token)

    def _abandon(self, token: _Training | None) -> None:
        if token is not None:
            token.put_back()


class _Training:
    """One call of train(). It replaces methods on the Trainer instance, because a subclass may define its own."""

    def __init__(self, context: ApplyContext, trainer: Any, num_pieces: int) -> None:
        self._context = context
        self._trainer = trainer
        self._num_pieces = num_pieces
        self._steps, self._batch_size = trainer.args.gradient_accumulation_steps, trainer._train_batch_size
        self._loader: Any = None
        self._divisors: list[float] = []
        self._originals = {name: getattr(trainer, name) for name in _METHODS}
        # Methods that the script has put on the instance.
        self._own = {name: vars(trainer)[name] for name in _METHODS if name in vars(trainer)}
        trainer.get_train_dataloader = self._get_train_dataloader

    def put_back(self) -> None:
        trainer = self._trainer
        for name in _METHODS:
            vars(trainer).pop(name, None)
        vars(trainer).update(self._own)
        if self._loader is not None:
            restore(self._loader)
            trainer.args.gradient_accumulation_steps, trainer._train_batch_size = self._steps, self._batch_size
            self._loader = None

    def _get_train_dataloader(self) -> Any:
        loader = self._originals["get_train_dataloader"]()
        if self._loader is None:
            try:
                self._divide(loader)
            except RefusedError as refusal:
                self._context.decline(str(refusal))
            except Exception as fault:
                self._context.decline(f"{type(fault).__name__}: {fault}")
        return loader

    def _divide(self, loader: Any) -> None:
        trainer = self._trainer
        refuse_mixing(trainer.model, always=True)
        few = trainer._prepare_inputs(fetch_few(loader))
        labels = trainer._get_num_items_in_batch([few], trainer.args.device)
        is_scaled = _is_scaled(trainer, labels)

        def loss(control: Any, batch: Any) -> Any:
            return trainer.compute_loss(control, dict(trainer._prepare_inputs(batch)), num_items_in_batch=labels)

        try_losses(trainer.model, loader, loss, is_sum=is_scaled)
        divided = divide(loader, self._num_pieces)
        self._loader = loader
        trainer._train_batch_size = divided.batch_size
        trainer.args.gradient_accumulation_steps = self._steps * self._num_pieces
        if not is_scaled:
            trainer.get_batch_samples, trainer.training_step = self._get_batch_samples, self._training_step
        self._context.changed(
            f"batches of {divided.whole.batch_size} in pieces of {divided.batch_size},"
            f" gradient_accumulation_steps {self._steps} -> {trainer.args.gradient_accumulation_steps}"
        )

    def _get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        result = self._originals["get_batch_samples"](*args, **kwargs)
        sizes = iter([count_samples(piece) for piece in result[0]])
        batches = []
        while batch := list(islice(sizes, self._num_pieces)):
            batches.append(batch)
        self._divisors = [len(batches) * sum(batch) / size for batch in batches for size in batch]
        return result

    def _training_step(self, *args: Any, **kwargs: Any) -> Any:
        if self._divisors:
            setattr(self._trainer, _DIVISOR, self._divisors.pop(0))
        return self._originals["training_step"](*args, **kwargs)


def _is_scaled(trainer: Any, labels: Any) -> bool:
    """Whether the Trainer treats the loss as already divided by the number of labels of a whole update."""
    is_scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
    if is_scaled is not None:
        return bool(is_scaled)
    return bool(trainer.model_accepts_loss_kwargs and labels is not None) or trainer.compute_loss_func is not None


def _refuse(trainer: Any) -> None:
    args = trainer.args
    if args.world_size > 1:
        raise RefusedError(f"this is one of {args.world_size} ranks, and recipes are measured with one process")
    if args.n_gpu > 1:
        raise RefusedError(f"the Trainer spreads its batches over {args.n_gpu} devices")
    if args.auto_find_batch_size:
        raise RefusedError("auto_find_batch_size changes the batch size")
    if getattr(trainer, "is_deepspeed_enabled", False):
        raise RefusedError("DeepSpeed accumulates gradients itself")
    # Inspect the Trainer's own step, even behind functools.wraps or a subclass.
    step = next(vars(kind)["training_step"] for kind in type(trainer).__mro__[::-1] if "training_step" in vars(kind))
    if _DIVISOR not in step.__code__.co_names:
        raise RefusedError("this version of transformers does not weight the pieces of an update: use 4.49 or newer")
