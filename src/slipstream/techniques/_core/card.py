"""What every technique says about itself, and how it answers whether it applies. No torch."""

from __future__ import annotations

from typing import Literal

import msgspec

from slipstream.records import NumericsClass

Seam = Literal["loader", "transfer", "module", "backward", "optimizer", "process"]
Memory = Literal["same", "less", "more"]
Purpose = Literal["speed", "memory", "fit"]


class Card(msgspec.Struct, frozen=True):
    title: str  # "Worker processes for the loader"
    seam: Seam
    causes: tuple[str, ...]  # the findings it answers
    numerics: NumericsClass
    memory: Memory = "same"
    needs: tuple[str, ...] = ()  # "cuda", "accelerator", a package; said in the list, tested by applies()
    claims: tuple[str, ...] = ()  # what it takes for itself: two techniques that claim the same thing do not combine
    is_opt_in: bool = False  # tried and timed, never kept unless named with --only
    needs_proof: bool = False  # timed with other random numbers than the base's: the proof is a rider of its own
    is_ground: bool = False  # makes one start of a script as fast as the next: raced first, and the others on top of it
    is_later: bool = False  # gains from the second epoch on, by what it kept of the first: races time those
    nesting: int = 0  # lower is put in place first: of wrappers around a module it stands nearest to the module's code
    purpose: Purpose = "speed"  # memory: costs time, and is raced only where --only names it, or where memory is short
    # fit: not raced, for its step is other work; `tune --fit` uses it


class Answer(msgspec.Struct, frozen=True):
    is_yes: bool
    reason: str = ""


YES = Answer(True)


def no(reason: str) -> Answer:
    """Why not, as half a sentence: "the script does it already"."""
    return Answer(False, reason)
