"""An option of the script's own command line, as the script's parser read it."""

from __future__ import annotations

import msgspec


class Flag(msgspec.Struct, frozen=True):
    name: str  # where the value goes: "num_workers" of args.num_workers
    option: str  # "--num_workers"
    value: str  # as text: "0", "False", "None", "no"
    is_switch: bool = False  # the option alone, without a value, switches it on
    choices: list[str] = []
