"""Why something was not written: one edit that has to be made by hand, or a patch that is refused as a whole."""

from __future__ import annotations


class ByHandError(Exception):
    """This cannot be written safely for the user: why, as half a sentence."""


class MissingError(ByHandError):
    """What the session saw is not on this line."""


class PatchError(Exception):
    """Nothing is written at all: a sentence for the user."""


class MovedError(PatchError):
    """A line is no longer where the session saw it, and the edit is not there already."""
