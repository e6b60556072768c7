from __future__ import annotations

from typing import Any

import pytest
import torch

from slipstream.data.attributes import difference, look


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
    kept = thing.data  # so that its place is not given to the new one
    change(thing)
    assert difference(before, look(thing)).startswith(name)
    del kept


def test_the_same_value_set_again_is_no_change() -> None:
    thing = made()
    before = look(thing)
    thing.size = int("3")
    assert difference(before, look(thing)) == ""


def test_circles_and_crowds_end() -> None:
    thing = made()
    thing.self = thing
    thing.crowd = {n: Thing(n=n) for n in range(10_000)}
    assert len(look(thing, 20)) < 1000
