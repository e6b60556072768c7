"""Recipes: techniques with settings. Also describes the same changes as edits of the source."""

from __future__ import annotations

from typing import Literal

import msgspec

from slipstream.records.site import Site

# Strictest first: same bits; different rounding; different random numbers; lower precision; different training.
NumericsClass = Literal["identical", "reordered", "redrawn", "approximate", "different"]
NUMERICS: tuple[NumericsClass, ...] = ("identical", "reordered", "redrawn", "approximate", "different")

Setting = bool | int | str  # True: the technique has no variants


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
    "argument",  # an argument of the call at the site
    "loader",  # slipstream.DataLoader in the place of torch's in the call at the site
    "before",  # a statement before the one at the site
    "around",  # a context around the forward pass at the site, up to its backward pass
    "scaler",  # a gradient scaler for the loss whose forward pass is at the site; argument: the optimizer's class
    "start",  # a statement of the script, after its imports
    "environment",  # a variable (argument, text) set before the script's imports, because libraries read it when loaded
    "checkpoint",  # checkpointing of the model's blocks; its class is in the module `argument`
    "callee",  # a new name for the model in the call at the site, assigned once before the loop
    "input",  # text appended to an argument of the model's call at the site
    "without_grad",  # torch.no_grad() around the evaluation that contains the site
    "running_sum",  # the running sum at the site stays on the device; argument: the conversion to Python's precision
    "convert_once",  # one conversion of the whole table that the site takes its batches from
    "detached",  # detach what the site adds to the variable `call`
    "by_hand",  # the user has to make the change
]


class Edit(msgspec.Struct, frozen=True):
    """One change of the user's source, as data. The package `rewrite` locates the code and changes it."""

    technique: str
    kind: EditKind
    site: Site | None  # the observed call; None: the edit concerns the whole script, or is made by hand
    # The function that is called at the site (kind "argument": DataLoader, AdamW), or the model's name (kind "input")
    call: str = ""
    # The argument's name. For "input" it may also be a position: "0". For "before": the model's name in its call. For
    # "callee": what the new name stands for
    argument: str = ""
    # The argument's value, the statement ({model} stands for the model's name), the context, or the appended text
    text: str = ""
    reason: str = ""  # by_hand: why the edit cannot be made automatically
    observed: str = ""  # repr of the argument's value in the session; "": not known
    is_if_given: bool = False  # the argument is changed only if the call has it, and is never added
    num_calls: int = 1  # number of calls of this name at the site, each time it runs
