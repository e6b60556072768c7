"""As many batches are handed out as were drained, so the script's number of iterations does not change."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from slipstream.observe.schedule.replayed_batches import ReplayedBatches
from slipstream.seams.batches import copy_batch, count_samples
from slipstream.testing.batches import Batches
from slipstream.testing.fake_clock import FakeClock


@pytest.mark.parametrize(("num", "wanted"), [(10, 4), (3, 4), (4, 4), (1, 4)])
def test_script_gets_the_exact_number_of_batches(num: int, wanted: int) -> None:
    kept, batches = ReplayedBatches(FakeClock()), Batches(num)
    received = 0
    times = kept.drain(batches, wanted, lambda: False)
    assert len(times) == min(num, wanted)
    with pytest.raises(StopIteration):
        while True:
            if kept.owes(batches):
                kept.hand_out(batches)
            else:
                next(batches)
            received += 1
    assert received == num


def test_reset_iterator_has_no_stored_batches() -> None:
    """Persistent workers keep one iterator for all epochs."""
    kept, batches = ReplayedBatches(FakeClock()), Batches(2)
    kept.drain(batches, 5, lambda: False)
    assert kept.owes(batches)
    kept.forget(batches)
    assert not kept.owes(batches) and kept.credit() == 0


def test_copies_are_fresh_and_keep_their_structure() -> None:
    batch = {"x": [torch.ones(2), (torch.zeros(1), "name")]}
    control = copy_batch(batch)
    control["x"][0].add_(1)
    assert batch["x"][0].tolist() == [1, 1]
    assert control["x"][1][1] == "name"


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(3, 2), 3),
        ([torch.zeros(4), torch.zeros(5)], 4),
        ({"scale": torch.tensor(1.0), "x": torch.zeros(6, 1)}, 6),
        (["a", "b"], 2),
        (None, 0),
        (SimpleNamespace(edge_index=torch.zeros(2, 9), num_graphs=7), 7),
        ([SimpleNamespace(edge_index=torch.zeros(2, 9), num_graphs=7), torch.zeros(3)], 7),
    ],
)
def test_samples_of_a_batch(batch: object, samples: int) -> None:
    assert count_samples(batch) == samples
