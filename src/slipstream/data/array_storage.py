"""Large NumPy arrays on their way through shared storages. What arrives is what pickling gives, made in
the same way. Imports no NumPy: where there is an array, there is NumPy."""

from __future__ import annotations

import ctypes
import math
import sys
from typing import Any

_LARGE = 2**16  # bytes: what a pipe holds at once
_NUMBERS = "biufc"


def is_large_array(thing: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or type(thing) is not numpy.ndarray or thing.nbytes < _LARGE:
        return False
    return thing.dtype.kind in _NUMBERS and bool(thing.dtype.isnative)


def order_of(array: Any) -> str:
    return "F" if array.flags.fnc else "C"


def write_array(storage: Any, array: Any) -> None:
    numpy: Any = sys.modules["numpy"]
    memory = (ctypes.c_char * array.nbytes).from_address(storage.data_ptr())
    target = numpy.frombuffer(memory, dtype=array.dtype).reshape(array.shape, order=order_of(array))
    numpy.copyto(target, array)


def read_array(storage: Any, dtype: Any, shape: tuple[int, ...], order: str) -> Any:
    import numpy

    array = numpy.ndarray.__new__(numpy.ndarray, (0,), "b")
    memory = ctypes.string_at(storage.data_ptr(), math.prod(shape) * dtype.itemsize)
    array.__setstate__((1, shape, dtype, order == "F", memory))  # as the unpickler does it
    return array
