"""Techniques with settings, and the same changes as edits of the source."""

from __future__ import annotations

from typing import Literal

import msgspec

from slipstream.records.site import Site

# Strictest first: same bits; other rounding; other random draws; lower precision; another training.
NumericsClass = Literal["identical", "reordered", "redrawn", "approximate", "different"]
NUMERICS: tuple[NumericsClass, ...] = ("identical", "reordered", "redrawn", "approximate", "different")

Setting = bool | int | str  # True: the technique has no variants, it is simply on


class Choice(msgspec.Struct, frozen=True):
    technique: str
    setting: Setting = True

    def __str__(self) -> str:
        return self.technique if self.setting is True else f"{self.technique}={self.setting}"


class Recipe(msgspec.Struct, frozen=True):
    choices: tuple[Choice, ...] = ()

    def __str__(self) -> str:
        return " + ".join(str(choice) for choice in self.choices) or "as it is"

    def setting_of(self, technique: str) -> Setting | None:
        return next((choice.setting for choice in self.choices if choice.technique == technique), None)

    def plus(self, choice: Choice) -> Recipe:
        return Recipe((*(c for c in self.choices if c.technique != choice.technique), choice))

    def without(self, technique: str) -> Recipe:
        return Recipe(tuple(choice for choice in self.choices if choice.technique != technique))


class Edit(msgspec.Struct, frozen=True):
    """One change of the user's source, as data: `rewrite` finds the place and writes it."""

    technique: str
    kind: Literal["argument", "before", "after", "around", "by_hand"]
    site: Site | None  # the observed call; None: by hand
    call: str = ""  # the callee at the site, for arguments: DataLoader, AdamW
    argument: str = ""
    text: str = ""  # the argument's value, the statement, or the context expression
    reason: str = ""  # by hand: why it cannot be written for the user
