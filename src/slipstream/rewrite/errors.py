"""The reasons why an edit or a patch is not written."""

from __future__ import annotations


class ByHandError(Exception):
    """The edit cannot be made safely and is left to the user. The message is the reason, as a clause."""


class MissingError(ByHandError):
    """The code that the session recorded is not on this line."""


class PatchError(Exception):
    """The whole patch is refused and nothing is written. The message is a sentence for the user."""


class MovedError(PatchError):
    """The source no longer has the recorded line at its place, and the edit was not made already."""
