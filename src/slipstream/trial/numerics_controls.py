"""The base's twins that differ by rounding alone. What their gradients differ by from the base's is the least that
anything else may be blamed for. They draw from a generator of their own."""

from __future__ import annotations

import torch

_SEED = 20260


class Control:
    """Moves the weights of each module that it meets, once."""

    def __init__(self) -> None:
        self._moved: set[int] = set()  # by address: two modules may share a weight

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
    """To the next number that can be written, up or down by chance. Zeros stay: their next number is a denormal."""

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator()
        self._generator.manual_seed(_SEED)

    def move(self, weights: torch.Tensor) -> torch.Tensor:
        up = torch.randint(0, 2, weights.shape, generator=self._generator, dtype=torch.int8).bool().to(weights.device)
        towards = torch.full_like(weights, float("-inf")).masked_fill_(up, float("inf"))
        return torch.where(weights == 0, weights, torch.nextafter(weights, towards))


class Coarsen(Control):
    """To the nearest number of bfloat16: as far as honest half precision may go. Shorter floats stay."""

    def move(self, weights: torch.Tensor) -> torch.Tensor:
        return weights.to(torch.bfloat16).to(weights.dtype) if weights.element_size() >= 4 else weights
