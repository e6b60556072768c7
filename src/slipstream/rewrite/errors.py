"""The reasons why something was not written: one edit must be made by hand, or the whole patch is refused."""

from __future__ import annotations


class ByHandError(Exception):
    """The edit cannot be made safely. The message is the reason, as half a sentence."""


class MissingError(ByHandError):
    """The code that the session recorded is not on this line."""


class PatchError(Exception):
    """Nothing is written. The message is a sentence for the user."""


class MovedError(PatchError):
    """A line has moved since the session recorded it, and the edit is not there already."""
