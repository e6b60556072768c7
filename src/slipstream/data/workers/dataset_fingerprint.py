"""Fingerprints of a dataset, to detect whether the script changes it.

A fingerprint covers the attributes of the dataset, of its transforms and of the datasets that it wraps, to a small
depth. Properties are not evaluated. No function of the user is called, except the `repr` of a dictionary's keys and the
`==` of plain values. A fingerprint reads an object's type with `type`, because `isinstance` reads `__class__`, which
raises for a proxy of a dead object.

`Elements` holds the contents of a long list and compares them with the list later without touching an element. Taking a
reference to an element writes to its memory (the reference count), and after a fork each page that is written to is
duplicated. On a Python version whose list layout is unknown, elements are touched."""

from __future__ import annotations

import ctypes
import sys
import weakref
import zlib
from collections.abc import Iterator
from itertools import islice
from logging import Logger
from types import FunctionType, MethodType, ModuleType
from typing import Any

_MOST = 256  # maximum number of objects; a fingerprint is taken in every epoch and must take no noticeable time
_MOST_ELEMENTS = 16  # of a list or dictionary; this is enough for transforms, and leaves out most samples
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_TUPLED = frozenset((*_PLAIN, tuple))
_MOST_BYTES = 64 * 2**20  # of all arrays together; reading them takes a twentieth of a second
_MOST_VALUES = 4_000_000  # of all new lists together; reading them takes a tenth of a second
_UNREAD = "unread"
_CONTAINERS: tuple[Any, ...] = (list, tuple, dict, set, frozenset, bytearray)
_OPAQUE = (type, ModuleType, FunctionType, Logger)


def walk(root: Any, depth: int = 4) -> Iterator[tuple[str, Any]]:
    """Yields each object that is reachable from `root` through attributes and elements of containers, with its path. An
    object that `isinstance` cannot examine is left out."""
    return ((path, value) for path, value in _reach(root, depth) if _is_examinable(value))


def _is_examinable(value: Any) -> bool:
    try:
        isinstance(value, ModuleType)
    except Exception:  # a proxy of a dead object; an object's own `__getattribute__` may raise anything
        return False
    return True


def _reach(root: Any, depth: int) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    waiting: list[tuple[str, Any, int]] = [("", root, depth)]
    while waiting and len(seen) < _MOST:
        path, value, left = waiting.pop(0)
        if path:
            yield path, value
        if left == 0 or id(value) in seen or issubclass(type(value), (*_PLAIN, *_OPAQUE)):
            continue
        seen.add(id(value))
        waiting.extend((path + step, child, left - 1) for step, child in _children(value))


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    kind: Any = type(value)
    if kind is MethodType:
        yield ".__self__", value.__self__
        return
    if issubclass(kind, (list, tuple)):
        elements = (list if issubclass(kind, list) else tuple).__iter__(value)
        for position, element in enumerate(islice(elements, _MOST_ELEMENTS)):
            yield f"[{position}]", element
    elif kind is dict:
        for key, element in list(islice(value.items(), _MOST_ELEMENTS)):
            yield f"[{_name(key)}]", element
    for name, attribute in list(_attributes(value).items()):
        yield f".{name}", attribute


def _name(key: Any) -> str:
    try:
        return repr(key)
    except Exception:  # the key's own `__repr__`
        return object.__repr__(key)


def _attributes(value: Any) -> dict[str, Any]:
    """Returns the attributes that the object itself holds. Its `__getattr__` is not called. A proxy has the attributes
    of its object."""
    read: Any = getattr if type(value) in weakref.ProxyTypes else object.__getattribute__
    try:
        attributes = read(value, "__dict__")
    except Exception:  # the object has none, or is a proxy of a dead object
        return {}
    return attributes if type(attributes) is dict else {}


def look(root: Any, depth: int = 4) -> dict[str, Any]:
    """Returns a fingerprint to compare with a later one. It holds plain values themselves, and the identity and size of
    everything else. It does not cover the contents of arrays and lists."""
    return {path: _token(value) for path, value in _reach(root, depth)}


def look_closely(root: Any, depth: int = 4, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns a fingerprint that also covers the contents of arrays and of lists of plain values, up to a limit of
    size. In a list that has not changed since the fingerprint `before`, no element is touched. Touching the elements
    would duplicate their memory, because forked workers share this memory."""
    reader = _Reader()
    earlier = before or {}
    fingerprint = {}
    for path, value in _reach(root, depth):
        token, (old, content) = _token(value), earlier.get(path, (None, None))
        fingerprint[path] = token, reader.read(value, _is_equal(old, token), content)
    return fingerprint


def unread(fingerprint: dict[str, Any]) -> str:
    """Returns the name of the first attribute whose contents were not read, mostly because they are too large. Returns
    "" if there is none. A change of these contents would not be noticed."""
    return next((path.lstrip(".") for path, token in fingerprint.items() if token[1] is _UNREAD), "")


class _Reader:
    """Reads the contents of objects whose in-place changes leave no other sign. Each object is read once, even if
    several paths lead to it."""

    def __init__(self) -> None:
        self._bytes_left = _MOST_BYTES
        self._values_left = _MOST_VALUES
        self._known: dict[int, Any] = {}

    def read(self, value: Any, is_known: bool, content: Any) -> Any:
        """Returns what a fingerprint holds about the contents of the value: a checksum, `Elements` or None. `content`
        is what the previous fingerprint holds at this path. `is_known` says whether that fingerprint has the same
        object at this path."""
        if id(value) not in self._known:
            self._known[id(value)] = self._checksum(value, is_known, content)
        return self._known[id(value)]

    def _checksum(self, value: Any, is_known: bool, content: Any) -> Any:
        numpy: Any = sys.modules.get("numpy")
        if type(value) is list:
            is_same = is_known and (content is None or (isinstance(content, Elements) and content.are_in(value)))
            return content if is_same else self._of_list(value)
        if is_uncounted(value):
            return self._of_uncounted(value)
        if numpy is None or not issubclass(type(value), numpy.ndarray) or not value.flags.writeable:
            return None
        self._bytes_left -= value.nbytes
        if self._bytes_left < 0:
            return _UNREAD
        return value.shape, value.strides, zlib.crc32(numpy.ascontiguousarray(value).view(numpy.ndarray).tobytes())

    def _of_uncounted(self, tensor: Any) -> Any:
        torch: Any = sys.modules["torch"]
        try:
            self._bytes_left -= tensor.nbytes
            if self._bytes_left < 0 or not tensor.is_cpu:
                return _UNREAD
            with torch.inference_mode():
                values = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
            return tuple(tensor.shape), tensor.stride(), tensor.dtype, zlib.crc32(values.tobytes())
        except Exception:  # for example a sparse or quantised tensor
            return _UNREAD

    def _of_list(self, values: list[Any]) -> Any:
        self._values_left -= len(values)
        if self._values_left < 0:
            return _UNREAD
        kinds = set(map(type, values))
        if not kinds <= _TUPLED:
            return None  # in a list of objects, `walk` covers the first ones
        if tuple in kinds and not {type(part) for one in values if type(one) is tuple for part in one} <= set(_PLAIN):
            return None
        return Elements(values)


def _token(value: Any) -> Any:
    kind = type(value)
    if issubclass(kind, _PLAIN):
        return kind, value
    container = next((one for one in _CONTAINERS if issubclass(kind, one)), None)
    if container is not None:
        return id(value), container.__len__(value)
    return id(value), _num_changes(value) if _is_tensor(value) else 0


def _is_tensor(value: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and issubclass(type(value), torch.Tensor)


def _num_changes(tensor: Any) -> int | None:
    torch: Any = sys.modules["torch"]
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return int(tensor._version)
    except Exception:  # a tensor that was made in inference mode does not count its in-place changes
        return None


def is_uncounted(value: Any) -> bool:
    """Whether the value is a tensor that does not count its in-place changes."""
    return _is_tensor(value) and _num_changes(value) is None


def difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Returns the name of the first attribute that changed, or "" if none did."""
    if _is_equal(before, now):
        return ""
    for path in (*now, *before):
        if not _is_equal(before.get(path, before), now.get(path, now)):
            return path.lstrip(".")
    return ""


def _is_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # a plain value of the user's own type, whose `__eq__` may raise anything
        return False


_WORD = ctypes.sizeof(ctypes.c_void_p)
_ITEMS_OF_LIST = 3 * _WORD  # offset of the pointer to the items, after reference count, type and number of elements
_ITEMS_OF_TUPLE = tuple.__basicsize__  # offset of the items themselves


class Elements:
    """The elements of a list of immutable values. It holds references to them, so that no other value can be allocated
    at the address of one of them."""

    __slots__ = ("_held",)

    def __init__(self, values: list[Any]) -> None:
        self._held = tuple(values)

    def are_in(self, values: list[Any]) -> bool:
        """Whether `values` holds the same objects in the same order. False can also mean that it is unknown."""
        if len(values) != len(self._held) or not _IS_KNOWN:
            return False
        return _addresses_in_list(values) == _addresses_in_tuple(self._held)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Elements) and self._held == other._held)

    __hash__ = None  # type: ignore[assignment]


def _addresses_in_list(values: list[Any]) -> bytes:
    items = ctypes.c_void_p.from_address(id(values) + _ITEMS_OF_LIST).value
    return ctypes.string_at(items, _WORD * len(values)) if items else b""


def _addresses_in_tuple(values: tuple[Any, ...]) -> bytes:
    return ctypes.string_at(id(values) + _ITEMS_OF_TUPLE, _WORD * len(values))


def _is_known() -> bool:
    """Whether this Python lays out lists and tuples as assumed here. The function tests this with a list and a tuple
    whose elements have known addresses."""
    elements = [object() for _ in range(5)]
    wanted = b"".join(ctypes.c_void_p(id(element)) for element in elements)
    is_plain = list.__basicsize__ == 5 * _WORD  # header (3 words), pointer to the items, allocated capacity
    return is_plain and _addresses_in_tuple(tuple(elements)) == wanted == _addresses_in_list(elements)


_IS_KNOWN = _is_known()
