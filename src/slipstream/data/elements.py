"""What a long list held when it was looked at, to be compared with it later without touching one element. To count a
reference is to write to an element's memory, and after a fork every page that is written to is there twice. Where this
Python lays lists out in a way that is not known, elements are touched."""

from __future__ import annotations

import ctypes
from typing import Any

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
