"""Finds denormal numbers among the values of a step. On a CPU, an operation on a denormal costs about as much as a
hundred ordinary ones. Inspects small samples, chosen by position so that no random number is drawn."""

from __future__ import annotations

from typing import Any

import torch

SAMPLE_SIZE = 2048
# Half precision is left out: its denormals have ordinary magnitudes, and the hardware handles them at full speed.
_DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def take_sample(value: Any) -> torch.Tensor | None:
    """Returns a copy of evenly spaced values of a tensor. Returns None for a value that is not an ordinary
    floating-point tensor, or that cannot be read without side effects."""
    if isinstance(value, (tuple, list)) and value:
        value = value[0]
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.dtype not in _DTYPES or value.numel() == 0:
        return None
    if value.layout != torch.strided or value.device.type == "meta" or _is_observed():
        return None
    with torch.no_grad():
        part: torch.Tensor = value.detach()
        while part.dim() > 1 and not part.is_contiguous():
            part = part.select(0, part.shape[0] // 2)
        part = part.reshape(-1)
        return part[:: max(1, -(-part.numel() // SAMPLE_SIZE))].clone()


def share_of_denormals(samples: list[torch.Tensor]) -> float | None:
    num_values = num_denormals = 0
    with torch.no_grad():
        for sample in samples:
            size = sample.abs()
            num_denormals += int(((size > 0) & (size < torch.finfo(sample.dtype).tiny)).sum().item())
            num_values += sample.numel()
    return num_denormals / num_values if num_values else None


def _is_observed() -> bool:
    """Whether a dispatch mode, a functorch transform or a graph capture is active. Each of these would see our
    operators and might record them."""
    if torch._C._len_torch_dispatch_stack() > 0:
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())
