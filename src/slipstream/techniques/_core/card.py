"""The card with which every technique describes itself, and the answer whether a technique applies. Does not import
torch."""

from __future__ import annotations

from typing import Literal

import msgspec

from slipstream.records import NumericsClass, Precision

Seam = Literal["loader", "transfer", "module", "backward", "optimizer", "process"]
Memory = Literal["same", "less", "more"]
Purpose = Literal["speed", "memory", "fit"]
# How a technique gains time. less: the work of a step becomes smaller or faster. spread: the work stays the same, but
# more processes or threads do it. same: the work stays the same and is done at other times. The ceilings of a check are
# computed for the unchanged work, so they hold only for techniques with `same`.
Work = Literal["less", "spread", "same"]


class Card(msgspec.Struct, frozen=True):
    title: str  # For example "Worker processes for the loader"
    seam: Seam
    causes: tuple[str, ...]  # The causes whose findings the technique answers
    numerics: NumericsClass
    memory: Memory = "same"
    needs: tuple[str, ...] = ()  # "cuda", "accelerator", a package; shown in the list, checked by applies()
    claims: tuple[str, ...] = ()  # Resources for exclusive use. Techniques with a common claim are not combined.
    is_opt_in: bool = False  # The technique is raced, but kept only if --only names it.
    # The technique is timed with other random numbers than the base, so a separate trial checks its numerics.
    needs_proof: bool = False
    # The technique reduces the differences between starts of a script. It is raced first, and the others on top of it.
    is_ground: bool = False
    # The technique gains from the second epoch on, because it stores data in the first one. Races time later epochs.
    is_later: bool = False
    # The technique compiles at its first start, which takes far longer than the script's start. It is raced when the
    # other techniques are ranked.
    is_slow_to_start: bool = False
    # Lower values are applied first. Of several wrappers around a module, the lowest is the innermost.
    nesting: int = 0
    # A "memory" technique costs time. It is raced only if --only names it or memory is short. A "fit" technique is not
    # raced, because its step does other work. `tune --fit` uses it.
    purpose: Purpose = "speed"
    # The precision in which an approximate technique computes. None: the setting names the precision.
    precision: Precision | None = None
    work: Work = "less"


class Answer(msgspec.Struct, frozen=True):
    is_yes: bool
    reason: str = ""
    is_already_so: bool = False  # The answer is no because the training already has what the technique would bring.


YES = Answer(True)


def no(reason: str) -> Answer:
    """Returns a negative answer. The reason is a clause: "the model is on the CPU"."""
    return Answer(False, reason)


def already(reason: str) -> Answer:
    """Returns a negative answer, because the training already has what the technique would bring: "the script compiles
    the model already"."""
    return Answer(False, reason, is_already_so=True)
