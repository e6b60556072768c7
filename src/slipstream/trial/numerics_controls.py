"""Controls that differ from the base only by rounding. A technique is only blamed for gradients that differ from the
base's by more than those of a control do. The controls use their own random generator."""

from __future__ import annotations

import torch

_SEED = 20260


class Control:
    """Perturbs the weights of each module that it is called with, once."""

    def __init__(self) -> None:
        self._moved: set[int] = set()  # addresses, because two modules may share a weight

    def __call__(self, module: torch.nn.Module) -> None:
        for parameter in module.parameters():
            weights = parameter.data
            if not weights.is_floating_point() or weights.data_ptr() in self._moved or not weights.numel():
                continue
            self._moved.add(weights.data_ptr())
            with torch.no_grad():
                weights.copy_(self.move(weights))

    def move(self, weights: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Nudge(Control):
    """Moves each weight by one ulp, up or down at random. Zeros stay, because their neighbours are denormals."""

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator()
        self._generator.manual_seed(_SEED)

    def move(self, weights: torch.Tensor) -> torch.Tensor:
        up = torch.randint(0, 2, weights.shape, generator=self._generator, dtype=torch.int8).bool().to(weights.device)
        towards = torch.full_like(weights, float("-inf")).masked_fill_(up, float("inf"))
        return torch.where(weights == 0, weights, torch.nextafter(weights, towards))


class Coarsen(Control):
    """Rounds each weight to bfloat16, the largest change that correct half precision makes. Shorter floats stay."""

    def move(self, weights: torch.Tensor) -> torch.Tensor:
        return weights.to(torch.bfloat16).to(weights.dtype) if weights.element_size() >= 4 else weights
