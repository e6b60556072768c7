"""What hangs on a dataset: its attributes, those of its transforms and of the datasets it wraps, to a small depth.
Looks, never calls: a property of the user's is not evaluated.

What a long list held when it was looked at, to be compared with it later without touching one element. To count a
reference is to write to an element's memory, and after a fork every page that is written to is there twice. Where this
Python lays lists out in a way that is not known, elements are touched."""

from __future__ import annotations

import ctypes
import sys
import zlib
from collections.abc import Iterator
from logging import Logger
from types import FunctionType, MethodType, ModuleType
from typing import Any

_MOST = 256  # a look is taken once an epoch, and must not be felt
_MOST_ELEMENTS = 16  # of a list or dictionary: transforms, not samples
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_TUPLED = frozenset((*_PLAIN, tuple))
_MOST_BYTES = 64 * 2**20  # of arrays, all together: read in a twentieth of a second
_MOST_VALUES = 4_000_000  # of lists, that are new: a tenth of a second
_UNREAD = "unread"
_OPAQUE = (type, ModuleType, FunctionType, Logger)


def walk(root: Any, depth: int = 4) -> Iterator[tuple[str, Any]]:
    """Everything reached from `root` by attribute, or as an element of a small container, with the way to it."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any, int]] = [("", root, depth)]
    while waiting and len(seen) < _MOST:
        path, value, left = waiting.pop(0)
        if path:
            yield path, value
        if left == 0 or id(value) in seen or isinstance(value, (*_PLAIN, *_OPAQUE)):
            continue
        seen.add(id(value))
        waiting.extend((path + step, child, left - 1) for step, child in _children(value))


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, MethodType):
        yield ".__self__", value.__self__
        return
    if isinstance(value, (list, tuple)):
        for position, element in enumerate(value[:_MOST_ELEMENTS]):
            yield f"[{position}]", element
    elif type(value) is dict:
        for key in list(value)[:_MOST_ELEMENTS]:
            yield f"[{key!r}]", value[key]
    attributes = getattr(value, "__dict__", None)
    if type(attributes) is dict:
        for name, attribute in list(attributes.items()):
            yield f".{name}", attribute


def look(root: Any, depth: int = 4) -> dict[str, Any]:
    """A portrait to compare with a later one: plain values as they are, everything else by identity and size.
    Contents of arrays and lists are not looked at."""
    return {path: _token(value) for path, value in walk(root, depth)}


def look_closely(root: Any, depth: int = 4, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """A portrait with the contents of arrays and of lists of plain values in it, as far as there is time for that. Of
    lists that are as they were in the portrait before, no element is touched: workers would get copies of them."""
    reader = _Reader()
    earlier = before or {}
    fingerprint = {}
    for path, value in walk(root, depth):
        token, (old, content) = _token(value), earlier.get(path, (None, None))
        fingerprint[path] = token, reader.read(value, old == token, content)
    return fingerprint


def unread(fingerprint: dict[str, Any]) -> str:
    """What may change unseen, because it was too large to be read; "" if nothing."""
    return next((path.lstrip(".") for path, token in fingerprint.items() if token[1] is _UNREAD), "")


class _Reader:
    """Checksums of what can be changed in place without a trace. Each thing is read once, whatever leads to it."""

    def __init__(self) -> None:
        self._bytes_left = _MOST_BYTES
        self._values_left = _MOST_VALUES
        self._known: dict[int, Any] = {}

    def read(self, value: Any, is_known: bool, content: Any) -> Any:
        """`content` is what was read of it before, where it was there already."""
        if id(value) not in self._known:
            self._known[id(value)] = self._checksum(value, is_known, content)
        return self._known[id(value)]

    def _checksum(self, value: Any, is_known: bool, content: Any) -> Any:
        numpy: Any = sys.modules.get("numpy")
        if type(value) is list:
            is_same = is_known and (content is None or (isinstance(content, Elements) and content.are_in(value)))
            return content if is_same else self._of_list(value)
        if numpy is None or not isinstance(value, numpy.ndarray) or not value.flags.writeable:
            return None
        self._bytes_left -= value.nbytes
        if self._bytes_left < 0:
            return _UNREAD
        return value.shape, value.strides, zlib.crc32(numpy.ascontiguousarray(value).view(numpy.ndarray).tobytes())

    def _of_list(self, values: list[Any]) -> Any:
        self._values_left -= len(values)
        if self._values_left < 0:
            return _UNREAD
        kinds = set(map(type, values))
        if not kinds <= _TUPLED:
            return None  # objects: those near the beginning are looked at one by one
        if tuple in kinds and not {type(part) for one in values if type(one) is tuple for part in one} <= set(_PLAIN):
            return None
        return Elements(values)


def _token(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, (list, tuple, dict, set, frozenset, bytearray)):
        return id(value), len(value)
    return id(value), getattr(value, "_version", 0)  # tensors count their changes in place


def difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """The attribute that changed, as a sentence names it; "" where nothing did."""
    if before == now:
        return ""
    for path in (*now, *before):
        if before.get(path, before) != now.get(path, now):
            return path.lstrip(".")
    return ""


_WORD = ctypes.sizeof(ctypes.c_void_p)
_ITEMS_OF_LIST = 3 * _WORD  # an address, behind the counts of references and of elements, and the type
_ITEMS_OF_TUPLE = tuple.__basicsize__  # the addresses themselves


class Elements:
    """Of a list of values that cannot be changed themselves. Holds them, so that no other value can take the place of
    one in memory."""

    __slots__ = ("_held",)

    def __init__(self, values: list[Any]) -> None:
        self._held = tuple(values)

    def are_in(self, values: list[Any]) -> bool:
        """Whether they are still the very ones, in this order. No: perhaps."""
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
    """Asked of a list and a tuple whose elements' addresses are known; nothing outside them is read."""
    elements = [object() for _ in range(5)]
    wanted = b"".join(ctypes.c_void_p(id(element)) for element in elements)
    is_plain = list.__basicsize__ == 5 * _WORD  # the head, the address, and the room there is
    return is_plain and _addresses_in_tuple(tuple(elements)) == wanted == _addresses_in_list(elements)


_IS_KNOWN = _is_known()
