from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from slipstream.data.workers import dataset_fingerprint as attributes
from slipstream.data.workers.dataset_fingerprint import difference, look, look_closely, unread


class Thing:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def made() -> Thing:
    return Thing(size=3, rows=[1, 2], data=torch.zeros(2), inner=Thing(transforms=[Thing(p=0.5)]))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda thing: setattr(thing, "size", 4), "size"),
        (lambda thing: setattr(thing, "epoch", 1), "epoch"),
        (lambda thing: delattr(thing, "size"), "size"),
        (lambda thing: thing.rows.append(3), "rows"),
        (lambda thing: thing.data.add_(1), "data"),
        (lambda thing: setattr(thing, "data", torch.zeros(2)), "data"),
        (lambda thing: setattr(thing.inner.transforms[0], "p", 0.1), "inner.transforms[0].p"),
    ],
)
def test_a_change_is_named(change: Any, name: str) -> None:
    thing = made()
    before = look(thing)
    kept = thing.data  # kept alive, so the new object gets another address
    change(thing)
    assert difference(before, look(thing)).startswith(name)
    del kept


def test_the_same_value_set_again_is_no_change() -> None:
    thing = made()
    before = look(thing)
    thing.size = int("3")
    assert difference(before, look(thing)) == ""


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda thing: thing.array.__setitem__((1, 1), 5), "array"),
        (lambda thing: thing.turned.__setitem__((1, 1), 5), "turned"),
        (lambda thing: thing.numbers.__setitem__(500, 5), "numbers"),
        (lambda thing: thing.pairs.__setitem__(500, ("a", 5)), "pairs"),
        (lambda thing: thing.inner.array.__iadd__(1), "inner.array"),
    ],
)
def test_look_closely_detects_in_place_changes(change: Any, name: str) -> None:
    thing = Thing(
        array=np.zeros((4, 4)),
        turned=np.zeros((4, 6)).T,
        numbers=list(range(1000)),
        pairs=[("a", n) for n in range(1000)],
        inner=Thing(array=np.zeros(3)),
        objects=[Thing()],
    )
    before = look_closely(thing)
    assert difference(before, look_closely(thing)) == "" == unread(before)
    change(thing)
    assert difference(before, look_closely(thing)) == name


def test_attributes_that_are_too_large_to_read_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attributes, "_MOST_BYTES", 100)
    monkeypatch.setattr(attributes, "_MOST_VALUES", 100)
    small, large, fixed = np.zeros(10), np.zeros(20), np.zeros(20)
    fixed.flags.writeable = False
    assert unread(look_closely(Thing(small=small, again=small, fixed=fixed))) == ""
    assert unread(look_closely(Thing(small=small, large=large))) == "large"
    assert unread(look_closely(Thing(rows=[0] * 101))) == "rows"


def test_cycles_and_large_containers_are_limited() -> None:
    thing = made()
    thing.self = thing
    thing.crowd = {n: Thing(n=n) for n in range(10_000)}
    assert len(look(thing, 20)) < 1000
