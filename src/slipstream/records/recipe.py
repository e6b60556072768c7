"""Recipes, which are techniques with settings, and edits, which describe the same changes in the source."""

from __future__ import annotations

from typing import Literal

import msgspec

from slipstream.records.site import Site

# The strictest class comes first. identical: the same bits. reordered: other rounding. redrawn: other random numbers.
# approximate: lower precision. different: another training.
NumericsClass = Literal["identical", "reordered", "redrawn", "approximate", "different"]
NUMERICS: tuple[NumericsClass, ...] = ("identical", "reordered", "redrawn", "approximate", "different")

Setting = bool | int | str  # True: the technique has no settings


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
    "argument",  # sets an argument of the call at the site
    "loader",  # replaces torch's DataLoader by slipstream.DataLoader in the call at the site
    "before",  # inserts a statement before the statement at the site
    "around",  # puts a context around the forward pass at the site and its loss, up to the backward pass
    "scaler",  # adds a gradient scaler for the loss of the forward pass at the site
    "start",  # inserts a statement after the script's imports
    "environment",  # sets an environment variable before the script's imports, because libraries read it on import
    "checkpoint",  # checkpoints the blocks of the model whose class is in the module `argument`
    "callee",  # calls the model at the site by a new name, which is assigned before the loop
    "input",  # appends a text to an argument of the model's call at the site
    "without_grad",  # disables gradients for the evaluation that contains the site
    "running_sum",  # keeps the running sum at the site on the device
    "convert_once",  # converts once, before the loop, the table from which the site takes its batches
    "detached",  # detaches the value that the site adds to the variable `call`
    "by_hand",  # leaves the change to the user
]


class Edit(msgspec.Struct, frozen=True):
    """One change of the user's source, as data. The package `rewrite` locates the code and changes it."""

    technique: str
    kind: EditKind
    site: Site | None  # the observed line; None: the edit concerns the whole script, or is made by hand
    # The name of what is called at the site. For "argument" it is a class or function, such as DataLoader or AdamW. For
    # "around", "callee", "input" and "scaler" it is the model's name. For "detached" it is the variable that keeps the
    # value, and for "without_grad" the training function.
    call: str = ""
    # The argument's name. For "input" it may also be a position, such as "0". For "environment" it is the variable,
    # for "before" the model's name in its call, for "callee" the value of the new name, for "scaler" the optimizer's
    # class, for "checkpoint" a module, and for "running_sum" the conversion to Python's precision.
    argument: str = ""
    # The value of the argument or variable, the statement (with {model} for the model's name), the context, the scaler,
    # the new name, or the appended text.
    text: str = ""
    reason: str = ""  # by_hand: why the edit cannot be made automatically
    observed: str = ""  # repr of the argument's value in the session; "": not known
    is_if_given: bool = False  # whether the argument is only changed if the call has it, and never added
    num_calls: int = 1  # how many calls of this name the line makes each time it runs
