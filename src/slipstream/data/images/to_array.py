"""`Image.tobytes`, which NumPy asks for pixels, and in workers `Tensor.contiguous`, by C of ours in front of Pillow's
and torch's. The first results of each, and then one in many, are made both ways and compared; one that differs ends it
for good. Torch's method is left alone in the script's own process, where models use and compilers read it.

Pixels as bytes in one piece, and each colour for itself, by C of ours: bytes change places, nothing is computed. For
what Pillow holds as RGB and torch as bytes; who is given them, and whether they are believed, is not its matter."""

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

_PACKING, _PARTING = range(2)  # kinds of trust
_LEAST_PIXELS = 1024  # below, the way into C takes as long as the work
Method = Callable[..., Any]


class ArrayConversion:
    def __init__(self, planes: PlaneKernel, on_use: Callable[[], None], on_difference: Callable[[], None]) -> None:
        self._planes = planes
        self._on_use = on_use
        self._on_difference = on_difference
        self._trust = SpotCheck()

    def install(self, patches: Patches) -> None:
        patches.replace(Image.Image, "tobytes", self._packing(Image.Image.tobytes))
        patches.replace(worker, "_worker_loop", _PartingLoop(worker._worker_loop, self))

    def install_in_worker(self, patches: Patches) -> None:
        patches.replace(torch.Tensor, "contiguous", self._parting(torch.Tensor.contiguous))

    def _packing(self, original: Method) -> Method:
        @functools.wraps(original)
        def tobytes(image: Any, encoder_name: str = "raw", *args: Any) -> Any:
            if args or encoder_name != "raw" or image.mode != "RGB" or not self._trust.has(_PACKING):
                return original(image, encoder_name, *args)
            image.load()  # as Pillow would do here: what it raises about a file is the script's to see
            made = self._try_packing(image)
            if made is not None and self._trust.wants_proof(_PACKING):
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
        except Exception:  # memory that ran out, say: Pillow does it, or finds the same
            return None

    def _parting(self, original: Method) -> Method:
        @functools.wraps(original)
        def contiguous(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if args or kwargs or not is_interleaved(tensor) or not self._trust.has(_PARTING):
                return original(tensor, *args, **kwargs)
            made = self._planes.part(tensor)
            self._on_use()
            if self._trust.wants_proof(_PARTING):
                return self._prove(_PARTING, made, original(tensor), torch.equal)
            return made

        return contiguous

    def _prove(self, kind: int, made: Any, wanted: Any, is_same: Callable[[Any, Any], bool]) -> Any:
        """The script gets what it would have got."""
        if is_same(made, wanted):
            self._trust.note_proof(kind)
        else:
            self._trust.withdraw(kind)
            self._on_difference()
        return wanted


class _PartingLoop(WorkerLoop):
    """Torch's own loop in a forked worker, whose tensors are all the loader's. A spawned one goes without."""

    def __init__(self, original: Callable[..., None], arraying: ArrayConversion) -> None:
        super().__init__(original)
        self._arraying = arraying

    def __reduce__(self) -> Any:
        """Whoever stands inside may have a way of its own."""
        return self._original.__reduce__() if isinstance(self._original, WorkerLoop) else super().__reduce__()

    def __call__(self, *args: Any) -> None:
        self._arraying.install_in_worker(Patches(lambda seam, fault: None, lambda: False))
        self._original(*args)


_SOURCE = Path(__file__).with_name("planes.c")
_NUM_COLOURS = 3

_new_bytes: Any = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_ssize_t]
_address_of: Any = ctypes.pythonapi.PyBytes_AsString
_address_of.restype, _address_of.argtypes = ctypes.c_void_p, [ctypes.py_object]


class PlaneKernel:
    def __init__(self) -> None:
        """Raises `CompileError` or `LookupError`: why it cannot be."""
        self._memory = PixelMemory()
        library, number, address = load_library(_SOURCE), ctypes.c_int, ctypes.c_void_p
        self._pack: Any = library.slipstream_pack
        self._pack.restype, self._pack.argtypes = None, [address, address, number, number]
        self._part: Any = library.slipstream_part
        self._part.restype, self._part.argtypes = None, [address, address, ctypes.c_size_t]

    def pack(self, core: Any) -> bytes:
        """What `tobytes` gives of an RGB image."""
        width, height = core.size
        made: bytes = _new_bytes(None, width * height * _NUM_COLOURS)  # nobody else has it until it is written
        self._pack(_address_of(made), self._memory.rows(core), width, height)
        return made

    def part(self, pixels: torch.Tensor) -> torch.Tensor:
        """What `contiguous` gives of a tensor that `is_interleaved`."""
        planes = torch.empty(pixels.shape, dtype=torch.uint8)
        self._part(planes.data_ptr(), pixels.data_ptr(), pixels.shape[1] * pixels.shape[2])
        return planes


def is_interleaved(tensor: Any) -> bool:
    """Colours, height, width, where the colours of a pixel lie side by side: what `permute(2, 0, 1)` makes of an
    array of pixels."""
    if type(tensor) is not torch.Tensor or tensor.dtype is not torch.uint8 or tensor.dim() != 3 or not tensor.is_cpu:
        return False
    num_colours, height, width = tensor.shape
    is_large = min(height, width) > 1  # else there may be nothing to be moved
    return num_colours == _NUM_COLOURS and is_large and tensor.stride() == (1, width * _NUM_COLOURS, _NUM_COLOURS)
