"""The card with which every technique describes itself, and its answer to whether it applies. Does not import torch."""

from __future__ import annotations

from typing import Literal

import msgspec

from slipstream.records import NumericsClass, Precision

Seam = Literal["loader", "transfer", "module", "backward", "optimizer", "process"]
Memory = Literal["same", "less", "more"]
Purpose = Literal["speed", "memory", "fit"]
# less: the work of a step becomes smaller or faster. spread: the same work, on more processes or threads. same: the
# same work at other times. The ceilings of a check are those of the unchanged work, so they hold only for the last.
Work = Literal["less", "spread", "same"]


class Card(msgspec.Struct, frozen=True):
    title: str  # "Worker processes for the loader"
    seam: Seam
    causes: tuple[str, ...]  # the findings that it answers
    numerics: NumericsClass
    memory: Memory = "same"
    needs: tuple[str, ...] = ()  # "cuda", "accelerator", a package; shown in the list, checked by applies()
    claims: tuple[str, ...] = ()  # resources for exclusive use: techniques with a common claim are not combined
    is_opt_in: bool = False  # tried and timed, but kept only if named with --only
    # Timed with other random numbers than the base's, so its numerics are checked by a separate trial.
    needs_proof: bool = False
    # Reduces the differences between starts of a script. It is raced first, and the others on top of it.
    is_ground: bool = False
    # Gains from the second epoch on, through what it stored in the first. Races time later epochs.
    is_later: bool = False
    # Its first start takes far longer than the script's, because it compiles. It is raced when the others are ranked.
    is_slow_to_start: bool = False
    # Lower values are applied first. Of several wrappers around a module, the lowest is the innermost.
    nesting: int = 0
    # "memory" costs time and is raced only if --only names it or memory is short. "fit" is not raced, because its step
    # does other work; `tune --fit` uses it.
    purpose: Purpose = "speed"
    precision: Precision | None = None  # that an approximate technique computes in; None: its setting names it
    work: Work = "less"  # how it gains time


class Answer(msgspec.Struct, frozen=True):
    is_yes: bool
    reason: str = ""
    is_already_so: bool = False  # no, because the training has what the technique would bring


YES = Answer(True)


def no(reason: str) -> Answer:
    """Returns a negative answer. The reason is half a sentence: "the model is on the CPU"."""
    return Answer(False, reason)


def already(reason: str) -> Answer:
    """Returns the answer that the training has what the technique would bring: "the script does it already"."""
    return Answer(False, reason, is_already_so=True)
