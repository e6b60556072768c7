"""Decodes files that anybody may have written. Every fault in the content raises the same error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec

# The errors that msgspec and the upgrade of older sessions raise for bytes that slipstream did not write.
_FAULTS: Final = (
    *(msgspec.MsgspecError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError),
    *(RecursionError, MemoryError),
)
T = TypeVar("T")


class DamagedFileError(Exception):
    """The content of a file is damaged. The message says how, without a full stop."""


@contextlib.contextmanager
def one_error() -> Iterator[None]:
    """Turns every error that damaged content can cause into DamagedFileError."""
    try:
        yield
    except _FAULTS as error:
        raise DamagedFileError(_reason(error)) from None


def decode_msgpack(data: bytes, type: type[T]) -> T:
    with one_error():
        return msgspec.msgpack.decode(data, type=type)


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeError):
        return "a text in it is not UTF-8"
    return str(error) if isinstance(error, msgspec.MsgspecError) else f"a field is wrong ({error!r:.100})"
