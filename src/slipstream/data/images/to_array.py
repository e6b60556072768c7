"""Replaces two methods with faster C code. The first is `Image.tobytes`, which NumPy calls to read the pixels of an
image. The second is `Tensor.contiguous`. It is replaced in loader workers only, because in the script's own process
models call it and compilers inspect it. The original computes the first results of each method too, and later one in
256. If a result of a method differs, the replacement of this method is disabled permanently.

`PlaneKernel` calls the C code. `to_bytes` copies the RGB pixels of Pillow, which take four bytes each, to contiguous
memory. `to_planes` separates the interleaved bytes of a tensor into one plane per colour. Neither changes a value, and
the callers check the results."""

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

_TO_BYTES, _TO_PLANES = range(2)  # kinds for SpotCheck
_LEAST_PIXELS = 1024  # for fewer pixels, calling C takes as long as the work
Method = Callable[..., Any]


class ArrayConversion:
    def __init__(self, planes: PlaneKernel, on_use: Callable[[], None], on_difference: Callable[[], None]) -> None:
        self._planes = planes
        self._on_use = on_use
        self._on_difference = on_difference
        self._spot_check = SpotCheck()

    def install(self, patches: Patches) -> None:
        patches.replace(Image.Image, "tobytes", self._tobytes(Image.Image.tobytes))
        patches.replace(worker, "_worker_loop", _ContiguousLoop(worker._worker_loop, self))

    def install_in_worker(self, patches: Patches) -> None:
        patches.replace(torch.Tensor, "contiguous", self._contiguous(torch.Tensor.contiguous))

    def _tobytes(self, original: Method) -> Method:
        @functools.wraps(original)
        def tobytes(image: Any, encoder_name: str = "raw", *args: Any) -> Any:
            if args or encoder_name != "raw" or image.mode != "RGB" or not self._spot_check.has(_TO_BYTES):
                return original(image, encoder_name, *args)
            image.load()  # as in Pillow, so that the script gets an exception about the file
            made = self._try_to_bytes(image)
            if made is not None and self._spot_check.wants_proof(_TO_BYTES):
                return self._prove(_TO_BYTES, made, original(image), bytes.__eq__)
            return original(image) if made is None else made

        return tobytes

    def _try_to_bytes(self, image: Any) -> bytes | None:
        try:
            core = image.im
            if core.mode != "RGB" or core.size != image.size or core.size[0] * core.size[1] < _LEAST_PIXELS:
                return None
            made = self._planes.to_bytes(core)
            self._on_use()
            return made
        except Exception:  # for example, memory is short; Pillow does the work or raises its own error
            return None

    def _contiguous(self, original: Method) -> Method:
        @functools.wraps(original)
        def contiguous(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            made = None if args or kwargs else self._try_planes(tensor)
            if made is not None and self._spot_check.wants_proof(_TO_PLANES):
                return self._prove(_TO_PLANES, made, original(tensor), torch.equal)
            return original(tensor, *args, **kwargs) if made is None else made

        return contiguous

    def _try_planes(self, tensor: Any) -> torch.Tensor | None:
        try:
            if not is_interleaved(tensor) or not self._spot_check.has(_TO_PLANES) or _is_intercepted():
                return None
            made = self._planes.to_planes(tensor)
            self._on_use()
            return made
        except Exception:  # for example, the tensor has no memory of its own, as inside torch.func.vmap
            return None

    def _prove(self, kind: int, made: Any, wanted: Any, is_same: Callable[[Any, Any], bool]) -> Any:
        """Compares our result with the original one, and returns the original one."""
        if is_same(made, wanted):
            self._spot_check.note_proof(kind)
        else:
            self._spot_check.withdraw(kind)
            self._on_difference()
        return wanted


class _ContiguousLoop(WorkerLoop):
    """Torch's own worker loop with the replaced `Tensor.contiguous`. In a worker, all tensors belong to the loader.
    This loop works in forked workers only."""

    def __init__(self, original: Callable[..., None], conversion: ArrayConversion) -> None:
        super().__init__(original)
        self._conversion = conversion

    def __reduce__(self) -> Any:
        """Pickles as the wrapped loop does, because the loop of another technique may pickle in its own way."""
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
        self._to_bytes: Any = library.slipstream_to_bytes
        self._to_bytes.restype, self._to_bytes.argtypes = None, [address, address, number, number]
        self._to_planes: Any = library.slipstream_to_planes
        self._to_planes.restype, self._to_planes.argtypes = None, [address, address, ctypes.c_size_t]

    def to_bytes(self, core: Any) -> bytes:
        """Returns what `tobytes` would return for an RGB image."""
        width, height = core.size
        made: bytes = _new_bytes(None, width * height * _NUM_COLOURS)  # no other code holds it until it is written
        self._to_bytes(_address_of(made), self._memory.rows(core), width, height)
        return made

    def to_planes(self, pixels: torch.Tensor) -> torch.Tensor:
        """Returns what `contiguous` would return for a tensor that `is_interleaved`."""
        planes = torch.empty(pixels.shape, dtype=torch.uint8, device="cpu")
        self._to_planes(planes.data_ptr(), pixels.data_ptr(), pixels.shape[1] * pixels.shape[2])
        return planes


def _is_intercepted() -> bool:
    """Whether a mode is active that handles torch's operators in its own way, such as one that makes fake tensors."""
    return bool(torch._C._len_torch_dispatch_stack())


def is_interleaved(tensor: Any) -> bool:
    """Whether the tensor has the shape (colours, height, width) and the colours of a pixel are adjacent in memory. This
    is so after `permute(2, 0, 1)` of an array of pixels."""
    if type(tensor) is not torch.Tensor or tensor.dtype is not torch.uint8 or tensor.dim() != 3 or not tensor.is_cpu:
        return False
    num_colours, height, width = tensor.shape
    is_large = min(height, width) > 1  # for a smaller tensor there may be nothing to move
    return num_colours == _NUM_COLOURS and is_large and tensor.stride() == (1, width * _NUM_COLOURS, _NUM_COLOURS)
