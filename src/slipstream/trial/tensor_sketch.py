"""Summarises tensors in a few numbers. The difference of two sketches is the sketch of the difference. Two fingerprints
differ if a single element of the tensors differs. This module uses its own random generators and does not advance the
script's. The script's `torch.set_default_device` does not affect the tensors of this module."""

from __future__ import annotations

from functools import lru_cache

import torch

from slipstream.records import Sketch

EXACT = 256  # tensors of up to this many elements are stored completely
# A prime number. Rows and columns of a weight mostly have powers of two as their lengths. With a prime number of
# buckets, they spread over all buckets.
_NUM_BUCKETS = 251
_ROWS = 4096
_SEED = 314159


@lru_cache(maxsize=4)
def _signs(device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(_SEED)
    bits = torch.randint(0, 2, (_ROWS, _NUM_BUCKETS), generator=generator, dtype=torch.int8, device="cpu")
    return (2 * bits - 1).to(torch.float64).to(device)


@lru_cache(maxsize=256)
def _column_signs(chunk: int, device: str) -> torch.Tensor:
    """Returns different signs for every chunk, so that equal chunks do not add up."""
    generator = torch.Generator().manual_seed(_SEED + 1 + chunk)
    bits = torch.randint(0, 2, (_NUM_BUCKETS,), generator=generator, device="cpu")
    return (2 * bits - 1).to(torch.float64).to(device)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the elements in index order, whatever the memory format, on a device that supports float64."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.device.type == "mps":
        tensor = tensor.cpu()
    return tensor.reshape(-1)


def sketch(name: str, tensor: torch.Tensor) -> Sketch:
    """Sketches a tensor. Elements that are not finite are counted, and are zero in the sketch."""
    with torch.no_grad():
        flat = _flat(tensor)
        num_elements, device = flat.numel(), str(flat.device)
        if num_elements <= EXACT:
            values = flat.double()
            finite = torch.isfinite(values)
            values = torch.where(finite, values, 0.0)
            listed = values.tolist()
            num_bad = num_elements - int(finite.sum())
            return Sketch(name, num_elements, float(values.norm()), listed, num_bad, listed.count(0.0) - num_bad)
        buckets = torch.zeros(_NUM_BUCKETS, dtype=torch.float64, device=flat.device)
        square = torch.zeros((), dtype=torch.float64, device=flat.device)
        num_finite = torch.zeros((), dtype=torch.int64, device=flat.device)
        num_nonzero = torch.zeros((), dtype=torch.int64, device=flat.device)
        length = _ROWS * _NUM_BUCKETS
        for chunk in range((num_elements + length - 1) // length):
            part = flat[chunk * length : (chunk + 1) * length].double()
            finite = torch.isfinite(part)
            num_finite += finite.sum()
            part = torch.where(finite, part, 0.0)
            num_nonzero += part.count_nonzero()
            square += part.square().sum()
            if part.numel() % _NUM_BUCKETS:
                part = torch.nn.functional.pad(part, (0, _NUM_BUCKETS - part.numel() % _NUM_BUCKETS))
            rows = part.view(-1, _NUM_BUCKETS)
            buckets += (rows * _signs(device)[: len(rows)]).sum(0) * _column_signs(chunk, device)
        norm = float(square.sqrt())
        num_bad = num_elements - int(num_finite)
        return Sketch(name, num_elements, norm, buckets.tolist(), num_bad, int(num_finite - num_nonzero))


# Elements of eight bytes are read as two halves. Multiplying by an odd weight modulo 2^64 maps the highest of 64 bits
# onto itself. So two elements whose signs changed would cancel if they were read whole.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
_PIECE = 1 << 20


@lru_cache(maxsize=4)
def _weights(device: str) -> torch.Tensor:
    """Returns random weights. They are odd, so that a change of a single element never vanishes modulo 2^64."""
    generator = torch.Generator().manual_seed(_SEED)
    return (torch.randint(-(2**62), 2**62, (_PIECE,), generator=generator, device="cpu") * 2 + 1).to(device)


def fingerprint(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Returns weighted sums over the tensor's bits. The sums stay on the tensor's device, so that the caller can read
    many of them at once."""
    with torch.no_grad():
        flat = _flat(tensor)
        bits = flat.contiguous().view(_INTEGERS[flat.element_size()])
        weights = _weights(str(bits.device))
        pieces = torch.split(bits, _PIECE) if bits.numel() else ()
        return [(piece.to(torch.int64) * weights[: piece.numel()]).sum() for piece in pieces]
