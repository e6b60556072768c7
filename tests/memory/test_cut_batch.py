"""Cutting the first samples from whatever a loader yields."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from typing import Any

import torch

from slipstream.memory.cut_batch import cut_batch

Pair = namedtuple("Pair", ["images", "labels"])


def test_every_part_is_cut() -> None:
    images, labels = torch.randn(8, 3), torch.arange(8)
    pair = cut_batch(Pair(images, labels), 2)
    assert isinstance(pair, Pair) and torch.equal(pair.labels, labels[:2])
    assert pair.images.untyped_storage().nbytes() == 2 * 3 * 4  # it has its own memory
    mapping = cut_batch({"x": images, "names": list("abcdefgh"), "scale": torch.tensor(2.0), "n": 8}, 3)
    assert mapping["names"] == ["a", "b", "c"] and mapping["x"].shape == (3, 3)
    assert mapping["scale"] == 2 and mapping["n"] == 8
    assert cut_batch([images, [labels, labels]], 4)[1][1].shape == (4,)


def test_other_mappings_keep_their_type() -> None:
    for kind in (OrderedDict, UserDict):
        batch: Any = kind(x=torch.ones(4, 2))
        cut = cut_batch(batch, 2)
        assert type(cut) is kind and cut["x"].shape == (2, 2)
        assert batch["x"].shape == (4, 2)


def test_batches_that_are_not_cut() -> None:
    batch = [torch.ones(2)]
    assert cut_batch(batch, 4) is batch  # no more samples than wanted

    class Graphs:
        def __init__(self) -> None:
            self.nodes = torch.ones(8)

    assert cut_batch(Graphs(), 2) is None
    assert cut_batch([torch.ones(8), Graphs()], 2) is None
    assert cut_batch(object(), 2) is None
