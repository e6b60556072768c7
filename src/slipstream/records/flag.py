"""An option of the script's own command line, as the script's parser read it."""

from __future__ import annotations

import msgspec


class Flag(msgspec.Struct, frozen=True):
    name: str  # the attribute that holds the value: "num_workers" for args.num_workers
    option: str  # "--num_workers"
    value: str  # the value as text: "0", "False", "None", "no"
    is_switch: bool = False  # whether the option takes no value and switches something on
    choices: list[str] = []
