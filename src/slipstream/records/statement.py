"""Facts about a recorded line from the user's source. They are stored in the session, because the source may change
before the session is read."""

from __future__ import annotations

import msgspec


class Statement(msgspec.Struct, frozen=True):
    file: str
    line: int
    is_whole: bool = False  # whether the line is one simple statement
    # Names that the statement sets and that the script reads, and objects that the statement may change. A script that
    # leaves the statement out in some iterations may then fail, or compute something else.
    needed: list[str] = []
    counter: str = ""  # the variable that counts the iterations of the innermost loop around the statement; "": none
    guard: str = ""  # the condition under which the statement already runs only sometimes, such as `step % 100 == 0`
    changing: list[str] = []  # names that a loop around the statement sets, and objects that may change in the loop
    is_in_loop: bool = False  # whether a loop in the same function contains the statement
    function: str = ""  # the function that contains the statement; "": none
    # Whether the function, with all functions of the file that it calls, evaluates a model and trains nothing.
    only_evaluates: bool = False

    @property
    def is_skippable(self) -> bool:
        """Whether the script may leave the statement out in some iterations."""
        return self.is_whole and not self.needed
