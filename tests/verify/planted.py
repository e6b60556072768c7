"""Real trainings of a second, each with a planted fault or a sound technique, and their fingerprints."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from slipstream.records import Fingerprint, Precision
from slipstream.seams.patching import Patches
from slipstream.trial.fingerprint import FingerprintRecorder
from slipstream.trial.rounding_noise import RoundingNoise

NUM_STEPS = 16
BATCH = 16


class Convnet(nn.Module):
    """Has a bias before batch norm, whose gradient is pure rounding, dropout, and a maximum that flips."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.norm1(self.conv1(x))), 2)
        x = functional.relu(self.norm2(self.conv2(x)))
        return self.head(self.dropout(x.mean((2, 3))))


class Transformer(nn.Module):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.embed = nn.Linear(48, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout, batch_first=True, norm_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        return self.head(self.layers(self.embed(patches)).mean(1))


class DeadUnits(nn.Module):
    """Half of its units are dead in every batch, so that half of the gradients are zero."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.head = nn.Linear(768, 64), nn.LayerNorm(64), nn.Linear(64, 10)
        with torch.no_grad():
            self.norm.bias[::2] = -6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(functional.relu(self.norm(self.inner(x.flatten(1)))))


class Perceptron(nn.Module):
    """Small enough to compile in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.dropout, self.head = nn.Linear(768, 32), nn.Dropout(0.2), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(functional.relu(self.inner(x.flatten(1)))))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "convnet": Convnet,
    "transformer": Transformer,
    "perceptron": Perceptron,
    "dead_units": DeadUnits,
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters, **how: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, **how),
    "adam": lambda parameters, **how: torch.optim.AdamW(parameters, lr=2e-3, **how),
    "sgd_with_decay": lambda parameters, **how: torch.optim.SGD(parameters, lr=0.05, weight_decay=0.01, **how),
}


@dataclass(frozen=True)
class Change:
    """The effect of a planted technique. The empty one is the base."""

    gradient_scale: float = 1.0
    lr_scale: float = 1.0
    has_weight_decay: bool = True
    skipped_batch: int | None = None
    label_shift: int = 0
    is_norm_updated_twice: bool = False
    has_dropout: bool = True
    precision: torch.dtype | None = None
    loss_scale: float = 1.0  # a property of the script: gradients so small that fp16 loses them
    is_channels_last: bool = False
    is_fused: bool = False
    is_compiled: bool = False
    num_threads: int | None = None


BASE = Change()


def train(
    model_name: str,
    optimizer_name: str,
    change: Change = BASE,
    *,
    noise: tuple[Precision, int] | None = None,
    seed: int = 0,
    num_steps: int = NUM_STEPS,
) -> Fingerprint:
    """`noise`: a precision whose rounding is added, and the number of the draw."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(change.num_threads or 1)
    patches = Patches(_refuse_faults, torch.compiler.is_compiling)
    steps: list[int] = []
    recorder = FingerprintRecorder(lambda: len(steps))
    rounding = RoundingNoise(*noise) if noise is not None else None
    try:
        torch.manual_seed(seed)
        model = MODELS[model_name]()
        if rounding is not None:
            rounding.install(patches)
            rounding(model)
        recorder.install(patches)
        recorder.add_module(model)
        digests = _run(model, optimizer_name, change, seed, num_steps, steps, recorder)
    finally:
        patches.close()
        torch.set_num_threads(num_threads)
    return Fingerprint(
        losses=recorder.take_losses(),
        snapshots=recorder.take_snapshots(),
        digests=digests,
        own_precision=rounding.own_precision if rounding is not None else "fp32",
    )


def _run(
    model: nn.Module,
    optimizer_name: str,
    change: Change,
    seed: int,
    num_steps: int,
    steps: list[int],
    recorder: FingerprintRecorder,
) -> list[tuple[int, str]]:
    fused: dict[str, Any] = {"fused": True} if change.is_fused else {}
    if not change.has_dropout:
        _switch_dropout_off(model)
    if change.is_channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), **fused)
    for group in optimizer.param_groups:
        group["lr"] *= change.lr_scale
        group["weight_decay"] *= change.has_weight_decay
    call = torch.compile(model) if change.is_compiled else model
    batches = _batches(num_steps + 1, seed)
    if change.skipped_batch is not None:
        del batches[change.skipped_batch]
    for x, y in batches[:num_steps]:
        optimizer.zero_grad()
        _loss(call, model, x, y, change).backward()
        for parameter in model.parameters():
            if parameter.grad is not None and change.gradient_scale != 1.0:
                parameter.grad.mul_(change.gradient_scale)
        optimizer.step()
        steps.append(len(steps))
    return [(num_steps, recorder.digest())]


def _loss(call: Any, model: nn.Module, x: torch.Tensor, y: torch.Tensor, change: Change) -> torch.Tensor:
    if change.is_norm_updated_twice:
        with torch.no_grad():
            draws = torch.get_rng_state()
            model(x)
            torch.set_rng_state(draws)  # the dropout masks stay the same
    if change.is_channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", dtype=change.precision) if change.precision else nullcontext():
        logits = call(x)
    return functional.cross_entropy(logits.float(), (y + change.label_shift) % 10) * change.loss_scale


def _batches(num_batches: int, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draws = torch.Generator().manual_seed(seed)
    patterns = torch.randn(10, 3, 16, 16, generator=torch.Generator().manual_seed(99))
    batches = []
    for _ in range(num_batches):
        y = torch.randint(0, 10, (BATCH,), generator=draws)
        batches.append((0.5 * patterns[y] + torch.randn(BATCH, 3, 16, 16, generator=draws), y))
    return batches


def _switch_dropout_off(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0


def _refuse_faults(place: str, fault: BaseException) -> None:
    raise AssertionError(f"{place}: {fault}")
