"""What the user's source says about a recorded line. It is read when the session is made, because the source may have
changed when the session is read."""

from __future__ import annotations

import msgspec


class Statement(msgspec.Struct, frozen=True):
    file: str
    line: int
    is_whole: bool = False  # the line is one simple statement
    # Names that it sets and that the script reads, and objects that it may change: a script that leaves it out in some
    # iterations may fail, or compute something else.
    needed: list[str] = []
    counter: str = ""  # the variable that counts the iterations of the loop directly around it; "": there is none
    guard: str = ""  # `step % 100 == 0`: the condition under which it already runs only now and then
    changing: list[str] = []  # names that are set in a loop around it, and objects that may be changed there
    is_in_loop: bool = False  # of its own function
    function: str = ""  # around it; "": the statement is in no function
    # The function, with all functions of the file that it calls, evaluates a model and contains nothing that trains.
    only_evaluates: bool = False

    @property
    def is_skippable(self) -> bool:
        """Whether the script may leave the statement out in some iterations."""
        return self.is_whole and not self.needed
