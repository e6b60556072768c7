"""Tensors in a few numbers: sketches, whose difference is the sketch of the difference, and fingerprints, which differ
if a single bit does. Draws from generators of its own only: the script's random numbers stay where they are."""

from __future__ import annotations

from functools import lru_cache

import torch

from slipstream.records import Sketch

EXACT = 256  # tensors up to this many elements are kept as they are
# A prime, so that the rows and columns of a weight, whose lengths are round numbers, spread over all buckets
_NUM_BUCKETS = 251
_ROWS = 4096
_SEED = 314159


@lru_cache(maxsize=4)
def _signs(device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(_SEED)
    bits = torch.randint(0, 2, (_ROWS, _NUM_BUCKETS), generator=generator, dtype=torch.int8)
    return (2 * bits - 1).to(torch.float64).to(device)


@lru_cache(maxsize=256)
def _column_signs(chunk: int, device: str) -> torch.Tensor:
    """Other ones for every chunk, so that chunks do not add up to one."""
    generator = torch.Generator().manual_seed(_SEED + 1 + chunk)
    return (2 * torch.randint(0, 2, (_NUM_BUCKETS,), generator=generator) - 1).to(torch.float64).to(device)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """In the order of its indices, whatever its memory format; where float64 can be had."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.device.type == "mps":
        tensor = tensor.cpu()
    return tensor.reshape(-1)


def sketch(name: str, tensor: torch.Tensor) -> Sketch:
    """Elements that are not finite are counted, and are zero in the sketch."""
    with torch.no_grad():
        flat = _flat(tensor)
        num_elements, device = flat.numel(), str(flat.device)
        if num_elements <= EXACT:
            values = flat.double()
            finite = torch.isfinite(values)
            values = torch.where(finite, values, 0.0)
            listed = values.tolist()
            return Sketch(name, num_elements, float(values.norm()), listed, num_elements - int(finite.sum()))
        buckets = torch.zeros(_NUM_BUCKETS, dtype=torch.float64, device=flat.device)
        square = torch.zeros((), dtype=torch.float64, device=flat.device)
        num_finite = torch.zeros((), dtype=torch.int64, device=flat.device)
        length = _ROWS * _NUM_BUCKETS
        for chunk in range((num_elements + length - 1) // length):
            part = flat[chunk * length : (chunk + 1) * length].double()
            finite = torch.isfinite(part)
            num_finite += finite.sum()
            part = torch.where(finite, part, 0.0)
            square += part.square().sum()
            if part.numel() % _NUM_BUCKETS:
                part = torch.nn.functional.pad(part, (0, _NUM_BUCKETS - part.numel() % _NUM_BUCKETS))
            rows = part.view(-1, _NUM_BUCKETS)
            buckets += (rows * _signs(device)[: len(rows)]).sum(0) * _column_signs(chunk, device)
        norm = float(square.sqrt())
        return Sketch(name, num_elements, norm, buckets.tolist(), num_elements - int(num_finite))


# Eight bytes as two halves: the highest bit of 64 would be the same after any odd weight
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
_PIECE = 1 << 20


@lru_cache(maxsize=4)
def _weights(device: str) -> torch.Tensor:
    """Odd, so that no change of a single element vanishes modulo 2^64."""
    generator = torch.Generator().manual_seed(_SEED)
    return (torch.randint(-(2**62), 2**62, (_PIECE,), generator=generator) * 2 + 1).to(device)


def fingerprint(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Sums over its bits, on its own device: the caller reads many at once."""
    with torch.no_grad():
        flat = _flat(tensor)
        bits = flat.contiguous().view(_INTEGERS[flat.element_size()])
        weights = _weights(str(bits.device))
        pieces = torch.split(bits, _PIECE) if bits.numel() else ()
        return [(piece.to(torch.int64) * weights[: piece.numel()]).sum() for piece in pieces]
