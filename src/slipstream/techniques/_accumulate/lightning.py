"""Gradient accumulation in Lightning. When a fit sets up its data, the batches of the training loader are divided and
the Trainer's accumulate_grad_batches is multiplied. Both changes are undone when the fit ends."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from slipstream.seams.patching import rewrite_arguments
from slipstream.techniques._accumulate.loss_reduction import refuse_mixing, try_losses
from slipstream.techniques._accumulate.split_loader import Divided, divide, restore
from slipstream.techniques._recompute.record_random import RefusedError

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext

MODULES = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")


class InLightning:
    def __init__(self, context: ApplyContext, num_pieces: int) -> None:
        self._context = context
        self._num_pieces = num_pieces
        self._trainer: Any = None
        self._loader: Any = None
        self._divided: Divided | None = None
        self._before = 1  # The script's own accumulate_grad_batches
        self.is_used = False

    def install(self, fit_loop: ModuleType) -> None:
        patches = self._context.patches
        automatic: Any = sys.modules[fit_loop.__name__.replace("fit_loop", "optimization.automatic")]
        # Lightning calls this function after the strategy has processed a loader, and then counts the batches.
        patches.around(fit_loop, "_process_dataloader", "accumulation.loader", None, self._after_loader)
        patches.around(vars(fit_loop)["_FitLoop"], "teardown", "accumulation.end", None, self._after_fit)
        rewrite_arguments(
            patches, automatic.ClosureResult, "from_training_step_output", "accumulation.loss", self._weigh
        )
        patches.on_close(self._put_back)

    def _after_loader(self, token: Any, args: tuple[Any, ...], kwargs: dict[str, Any], loader: Any) -> None:
        trainer = args[0]
        if self._trainer is trainer and self._loader is loader:
            return  # This is a later epoch of the same fit.
        self.is_used = True
        try:
            if self._trainer is trainer:
                raise RefusedError("the fit trains from several loaders at once")
            self._begin(trainer, loader)
        except RefusedError as refusal:
            self._put_back()
            self._trainer = trainer  # Do not change any other loader of this fit.
            self._context.decline(str(refusal))

    def _begin(self, trainer: Any, loader: Any) -> None:
        _refuse(trainer)
        model = trainer.lightning_module
        refuse_mixing(model)
        num_arguments = len(inspect.signature(model.training_step).parameters)

        def loss(control: Any, batch: Any) -> Any:
            batch = trainer.precision_plugin.convert_input(batch)
            batch = control.transfer_batch_to_device(batch, model.device, 0)
            output = control.training_step(*(batch, 0)[:num_arguments])
            return output["loss"] if isinstance(output, dict) else output

        try_losses(model, loader, loss)
        self._divided = divide(loader, self._num_pieces)
        self._trainer, self._loader, self._before = trainer, loader, trainer.accumulate_grad_batches
        trainer.accumulate_grad_batches = self._before * self._num_pieces
        size = self._divided.whole.batch_size
        self._context.changed(
            f"batches of {size} in pieces of {self._divided.batch_size},"
            f" accumulate_grad_batches {self._before} -> {trainer.accumulate_grad_batches}"
        )

    def _weigh(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Weights each piece by its number of samples. Lightning itself divides by a fixed number, even if the last
        batch is smaller."""
        if self._divided is None or len(args) < 2:
            return args, kwargs
        share = self._divided.share(self._trainer.fit_loop.epoch_loop.batch_idx)
        return (args[0], self._before / share, *args[2:]), kwargs

    def _after_fit(self, token: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if args and args[0].trainer is self._trainer:
            self._put_back()

    def _put_back(self) -> None:
        if self._divided is not None:
            restore(self._loader)
            self._trainer.accumulate_grad_batches = self._before
        self._trainer = self._loader = self._divided = None


def _refuse(trainer: Any) -> None:
    if trainer.world_size > 1:
        raise RefusedError(f"this is one of {trainer.world_size} ranks, and recipes are measured with one process")
    if not trainer.lightning_module.automatic_optimization:
        raise RefusedError("the module optimizes by hand, so accumulate_grad_batches has no effect")
    if trainer.strategy.handles_gradient_accumulation:
        raise RefusedError(f"{type(trainer.strategy).__name__} accumulates gradients itself")
    if any(type(callback).__name__ == "GradientAccumulationScheduler" for callback in trainer.callbacks):
        raise RefusedError("a GradientAccumulationScheduler changes the number of accumulated batches")
    if any(type(optimizer).__name__ == "LBFGS" for optimizer in trainer.optimizers):
        raise RefusedError("LBFGS computes the loss of a batch more than once")
    if trainer.reload_dataloaders_every_n_epochs:
        raise RefusedError("the loaders are rebuilt during the training")
    for name in ("limit_train_batches", "val_check_interval"):
        if not isinstance(getattr(trainer, name), float) or getattr(trainer, name) != 1.0:
            raise RefusedError(f"{name}={getattr(trainer, name)} would count pieces instead of batches")
    if trainer.overfit_batches:
        raise RefusedError("overfit_batches would count pieces instead of batches")
