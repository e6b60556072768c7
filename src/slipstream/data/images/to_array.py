"""Replaces `Image.tobytes`, which NumPy calls to read pixels, and in workers also `Tensor.contiguous`, with our own C
code. The first results of each, and later one in many, are computed in both ways and compared. One difference disables
the replacement permanently. `Tensor.contiguous` is not replaced in the script's own process, where models call it and
compilers inspect it.

`PlaneKernel` calls the C code. It copies the RGB pixels of Pillow to contiguous bytes, and separates interleaved bytes
of torch into one plane per colour. Bytes only change places. Its callers check the results."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data._utils import worker

from slipstream.data.images.c_build import load_library
from slipstream.data.images.pixel_memory import PixelMemory
from slipstream.data.images.spot_check import SpotCheck
from slipstream.data.workers.worker_loop import WorkerLoop
from slipstream.seams.patching import Patches

_PACKING, _PARTING = range(2)  # kinds for SpotCheck
_LEAST_PIXELS = 1024  # for fewer pixels, calling C takes as long as the work
Method = Callable[..., Any]


class ArrayConversion:
    def __init__(self, planes: PlaneKernel, on_use: Callable[[], None], on_difference: Callable[[], None]) -> None:
        self._planes = planes
        self._on_use = on_use
        self._on_difference = on_difference
        self._spot_check = SpotCheck()

    def install(self, patches: Patches) -> None:
        patches.replace(Image.Image, "tobytes", self._packing(Image.Image.tobytes))
        patches.replace(worker, "_worker_loop", _PartingLoop(worker._worker_loop, self))

    def install_in_worker(self, patches: Patches) -> None:
        patches.replace(torch.Tensor, "contiguous", self._parting(torch.Tensor.contiguous))

    def _packing(self, original: Method) -> Method:
        @functools.wraps(original)
        def tobytes(image: Any, encoder_name: str = "raw", *args: Any) -> Any:
            if args or encoder_name != "raw" or image.mode != "RGB" or not self._spot_check.has(_PACKING):
                return original(image, encoder_name, *args)
            image.load()  # as Pillow does here, so that the script gets an exception about the file
            made = self._try_packing(image)
            if made is not None and self._spot_check.wants_proof(_PACKING):
                return self._prove(_PACKING, made, original(image), bytes.__eq__)
            return original(image) if made is None else made

        return tobytes

    def _try_packing(self, image: Any) -> bytes | None:
        try:
            core = image.im
            if core.mode != "RGB" or core.size != image.size or core.size[0] * core.size[1] < _LEAST_PIXELS:
                return None
            made = self._planes.pack(core)
            self._on_use()
            return made
        except Exception:  # for example out of memory: Pillow does the work or raises the same
            return None

    def _parting(self, original: Method) -> Method:
        @functools.wraps(original)
        def contiguous(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            made = None if args or kwargs else self._try_parting(tensor)
            if made is not None and self._spot_check.wants_proof(_PARTING):
                return self._prove(_PARTING, made, original(tensor), torch.equal)
            return original(tensor, *args, **kwargs) if made is None else made

        return contiguous

    def _try_parting(self, tensor: Any) -> torch.Tensor | None:
        try:
            if not is_interleaved(tensor) or not self._spot_check.has(_PARTING) or _is_intercepted():
                return None
            made = self._planes.part(tensor)
            self._on_use()
            return made
        except Exception:  # for example a tensor without memory of its own, as inside torch.func.vmap
            return None

    def _prove(self, kind: int, made: Any, wanted: Any, is_same: Callable[[Any, Any], bool]) -> Any:
        """Compare our result with the original one, and return the original one."""
        if is_same(made, wanted):
            self._spot_check.note_proof(kind)
        else:
            self._spot_check.withdraw(kind)
            self._on_difference()
        return wanted


class _PartingLoop(WorkerLoop):
    """Torch's own worker loop with the replaced `Tensor.contiguous`. In a worker, all tensors belong to the loader. It
    works in forked workers only."""

    def __init__(self, original: Callable[..., None], conversion: ArrayConversion) -> None:
        super().__init__(original)
        self._conversion = conversion

    def __reduce__(self) -> Any:
        """A wrapped loop of another technique may pickle in its own way."""
        return self._original.__reduce__() if isinstance(self._original, WorkerLoop) else super().__reduce__()

    def __call__(self, *args: Any) -> None:
        self._conversion.install_in_worker(Patches(lambda seam, fault: None, lambda: False))
        self._original(*args)


_SOURCE = Path(__file__).with_name("planes.c")
_NUM_COLOURS = 3

_new_bytes: Any = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_ssize_t]
_address_of: Any = ctypes.pythonapi.PyBytes_AsString
_address_of.restype, _address_of.argtypes = ctypes.c_void_p, [ctypes.py_object]


class PlaneKernel:
    def __init__(self) -> None:
        """Raises `CompileError` or `LookupError` with the reason if the C code cannot be used."""
        self._memory = PixelMemory()
        library, number, address = load_library(_SOURCE), ctypes.c_int, ctypes.c_void_p
        self._pack: Any = library.slipstream_pack
        self._pack.restype, self._pack.argtypes = None, [address, address, number, number]
        self._part: Any = library.slipstream_part
        self._part.restype, self._part.argtypes = None, [address, address, ctypes.c_size_t]

    def pack(self, core: Any) -> bytes:
        """The result of `tobytes` for an RGB image."""
        width, height = core.size
        made: bytes = _new_bytes(None, width * height * _NUM_COLOURS)  # no other code holds it until it is written
        self._pack(_address_of(made), self._memory.rows(core), width, height)
        return made

    def part(self, pixels: torch.Tensor) -> torch.Tensor:
        """The result of `contiguous` for a tensor that `is_interleaved`."""
        planes = torch.empty(pixels.shape, dtype=torch.uint8, device="cpu")
        self._part(planes.data_ptr(), pixels.data_ptr(), pixels.shape[1] * pixels.shape[2])
        return planes


def _is_intercepted() -> bool:
    """Whether a mode is active that handles torch's operators in its own way, such as one that makes fake tensors."""
    return bool(torch._C._len_torch_dispatch_stack())


def is_interleaved(tensor: Any) -> bool:
    """Whether the tensor has the shape (colours, height, width) while the colours of a pixel are adjacent in memory, as
    after `permute(2, 0, 1)` of an array of pixels."""
    if type(tensor) is not torch.Tensor or tensor.dtype is not torch.uint8 or tensor.dim() != 3 or not tensor.is_cpu:
        return False
    num_colours, height, width = tensor.shape
    is_large = min(height, width) > 1  # otherwise there may be nothing to move
    return num_colours == _NUM_COLOURS and is_large and tensor.stride() == (1, width * _NUM_COLOURS, _NUM_COLOURS)
