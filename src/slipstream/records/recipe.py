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

    def holds(self, other: Recipe) -> bool:
        return set(other.choices) <= set(self.choices)

    def without(self, technique: str) -> Recipe:
        return Recipe(tuple(choice for choice in self.choices if choice.technique != technique))


EditKind = Literal[
    "argument",  # of the call at the site
    "before",  # a statement before the one at the site
    "around",  # a context around the forward pass at the site, up to its backward pass
    "scaler",  # of the loss whose forward pass is at the site; argument: the optimizer's class
    "start",  # a statement of the script's own, after its imports
    "environment",  # a variable (argument, text) that is read when a library is loaded, before the script's imports
    "checkpoint",  # the blocks of the model whose class is in the module `argument`
    "callee",  # another name for the model where it is called at the site, given once before its loop
    "input",  # what is put behind an argument that the model is given at the site
    "without_grad",  # around the evaluation that holds the site
    "running_sum",  # at the site, kept on the device; argument: what makes a float as exact as Python's
    "convert_once",  # of the table that the site cuts a batch out of
    "detached",  # what the site puts into the variable `call`
    "by_hand",
]


class Edit(msgspec.Struct, frozen=True):
    """One change of the user's source, as data: `rewrite` finds the place and writes it."""

    technique: str
    kind: EditKind
    site: Site | None  # the observed call; None: of the script as a whole, or by hand
    call: str = ""  # the callee at the site, for arguments: DataLoader, AdamW; the model's name, for its inputs
    argument: str = ""  # its name; of an input also its place: "0"; before: what the model's call calls it; of a
    # callee: what the new name is for
    text: str = ""  # the argument's value, the statement ({model}: by its name there), the context, what is put behind
    reason: str = ""  # by hand: why it cannot be written for the user
    observed: str = ""  # the argument's value in the session, as Python writes it; "": not known
    is_if_given: bool = False  # an argument that is changed where the call gives it, and never added
    num_calls: int = 1  # of this name that ran at the site, each time
