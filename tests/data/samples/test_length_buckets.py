from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler, WeightedRandomSampler

from slipstream.data.samples.length_buckets import KnownLengths, obstacle, padding_share, regroup
from slipstream.data.samples.lengths import UnknownLengthsError, length_of, lengths_of

NUM = 203


class Texts(Dataset[Any]):
    """Samples with lengths from 1 to 100 in random order."""

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, index: int) -> Any:
        return torch.full((index * 37 % 100 + 1,), index), index


def pad(samples: list[Any]) -> Any:
    tokens, labels = zip(*samples, strict=True)
    return pad_sequence(tokens, batch_first=True, padding_value=-1), torch.tensor(labels)


LENGTHS = np.array([index * 37 % 100 + 1 for index in range(NUM)])


# --- lengths ---------------------------------------------------------------------------------------------------------


def test_the_first_sequence_is_measured() -> None:
    assert length_of({"labels": [1], "input_ids": [1, 2, 3]}) == 3
    assert length_of({"label": 1, "text": "four"}) == 4
    assert length_of((torch.zeros(5, 2), 1)) == length_of([np.zeros(5), 0]) == length_of([1, 2, 3, 4, 5]) == 5
    assert length_of(3) is None and length_of({"label": torch.tensor(1)}) is None


def test_lengths_of_all_samples() -> None:
    assert lengths_of(Texts()).tolist() == LENGTHS.tolist()


class Columns:
    """Behaves like a Hugging Face dataset: a slice of rows is a dictionary of columns."""

    column_names = ("label", "input_ids")

    def __len__(self) -> int:
        return 2500

    def __getitem__(self, rows: slice) -> Any:
        return {"input_ids": [[0] * (row % 7) for row in range(*rows.indices(2500))]}


def test_columns_are_read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("datasets.arrow_dataset")
    module.Dataset = Columns
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert lengths_of(Columns()).tolist() == [row % 7 for row in range(2500)]


class Augmented(Texts):
    def __getitem__(self, index: int) -> Any:
        return torch.zeros(int(torch.randint(1, 9, ())))


class Counting(Texts):
    count = 0

    def __getitem__(self, index: int) -> Any:
        self.count += 1
        return super().__getitem__(index)


class Slow(Texts):
    def __getitem__(self, index: int) -> Any:
        import time

        time.sleep(0.002)
        return super().__getitem__(index)


class Flat(Texts):
    def __getitem__(self, index: int) -> Any:
        return index


@pytest.mark.parametrize(
    ("kind", "why"),
    [(Augmented, "random numbers"), (Counting, "changes count"), (Slow, "would take about"), (Flat, "no sequence")],
)
def test_lengths_that_cannot_be_measured(kind: Any, why: str) -> None:
    before = torch.get_rng_state()
    with pytest.raises(UnknownLengthsError, match=why):
        lengths_of(kind(), most_s=0.2 if kind is Slow else 60.0)
    assert torch.equal(torch.get_rng_state(), before)


class Lazy(Texts):
    """Opens its file with the first sample, so that every worker has its own file."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, None

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file: Any = self.path.open("rb")
        return super().__getitem__(index)


def test_files_are_not_opened_in_the_scripts_process(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"")
    dataset = Lazy(tmp_path / "data")
    assert lengths_of(dataset).tolist() == LENGTHS.tolist() and dataset.file is None


class Dying(Texts):
    def __getitem__(self, index: int) -> Any:
        os._exit(1)


class Failing(Texts):
    def __getitem__(self, index: int) -> Any:
        raise KeyError(index)


@pytest.mark.parametrize(("kind", "why"), [(Dying, "died"), (Failing, "KeyError: 0")])
def test_a_failed_measuring_process_is_reported(kind: Any, why: str) -> None:
    with pytest.raises(UnknownLengthsError, match=why):
        lengths_of(kind())


# --- the order -------------------------------------------------------------------------------------------------------


def test_every_sample_comes_once_and_the_last_batch_stays() -> None:
    order = np.array(random.Random(3).sample(range(NUM), NUM))
    grouped = regroup(order, LENGTHS, 8)
    assert sorted(grouped.tolist()) == list(range(NUM))
    assert grouped[-(NUM % 8) :].tolist() == order[-(NUM % 8) :].tolist()
    assert padding_share(order, LENGTHS, 8) > 0.35 and padding_share(grouped, LENGTHS, 8) < 0.12
    assert regroup(order, LENGTHS, 8).tolist() == grouped.tolist(), "the same order for the same permutation"


def test_batches_are_not_in_order_of_length() -> None:
    order = np.array(random.Random(3).sample(range(NUM), NUM))
    longest = [int(LENGTHS[batch].max()) for batch in regroup(order, LENGTHS, 8)[:200].reshape(-1, 8)]
    assert longest != sorted(longest) and longest != sorted(longest, reverse=True)


def read(num_epochs: int = 2, kind: Any = Texts, **how: Any) -> list[Any]:
    torch.manual_seed(7)
    loader = DataLoader(kind(), batch_size=8, collate_fn=pad, **{"shuffle": True, **how})
    return [batch for _ in range(num_epochs) for batch in loader] + [torch.rand(2)]


@pytest.mark.parametrize("how", [{}, {"drop_last": True}, {"num_workers": 1}], ids=str)
def test_epochs_hold_the_same_samples_in_batches_of_the_same_sizes(applied: Any, how: Any) -> None:
    bare = read(**how)
    with applied(length_buckets=True) as context:
        ours = read(**how)
    assert [len(y) for _, y in ours[:-1]] == [len(y) for _, y in bare[:-1]]
    half = len(bare) // 2
    epochs = [torch.cat([y for _, y in ours[start : start + half]]).tolist() for start in (0, half)]
    assert all(len(set(epoch)) == len(epoch) for epoch in epochs) and epochs[0] != epochs[1]
    assert torch.equal(ours[-1], bare[-1]), "as many random numbers were drawn"
    assert sum(x.numel() for x, _ in ours[:-1]) < 0.75 * sum(x.numel() for x, _ in bare[:-1])
    assert context.once_ns > 0, "lengths are read once, and no epoch after the first takes so long to begin"
    assert len(context.changes) == 1 and "padding falls from" in context.changes[0] and context.declined == []


@pytest.mark.parametrize("how", [{}, {"num_workers": 1}], ids=str)
def test_works_together_with_read_ahead(applied: Any, how: Any) -> None:
    with applied(length_buckets=True):
        alone = read(**how)
    with applied(length_buckets=True, read_ahead=8):
        both = read(**how)
    for one, other in zip(alone[:-1], both[:-1], strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
    assert torch.equal(alone[-1], both[-1])


def test_the_scripts_generator_ends_in_the_same_state(applied: Any) -> None:
    bare, ours = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    read(1, generator=bare)
    with applied(length_buckets=True):
        read(1, shuffle=False, sampler=RandomSampler(Texts(), generator=ours), generator=ours)
    assert torch.equal(bare.get_state(), ours.get_state())


@pytest.mark.parametrize("kind", [Augmented, Flat])
def test_the_order_stays_if_lengths_are_unknown(applied: Any, kind: Any) -> None:
    def order(loader: Any) -> Any:
        torch.manual_seed(7)
        return list(loader.sampler), torch.rand(1)

    bare = order(DataLoader(kind(), 8, shuffle=True, collate_fn=pad))
    with applied(length_buckets=True) as context:
        assert order(DataLoader(kind(), 8, shuffle=True, collate_fn=pad)) == bare
    assert "keeps its order" in context.declined[0] and context.changes == []


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"shuffle": False}, "not shuffled"),
    ({"collate_fn": None}, "no collate_fn that pads"),
    ({"batch_size": 1}, "several samples"),
    ({"batch_sampler": [[0, 1]]}, "into batches itself"),
    ({"sampler": WeightedRandomSampler([1.0] * NUM, NUM)}, "WeightedRandomSampler"),
    ({"sampler": SequentialSampler(Texts())}, "SequentialSampler"),
    ({"sampler": RandomSampler(Texts(), replacement=True)}, "RandomSampler"),
    ({"sampler": RandomSampler(Texts(), num_samples=9)}, "RandomSampler"),
]


@pytest.mark.parametrize(("change", "why"), REFUSED, ids=range(len(REFUSED)))
def test_other_orders_are_refused(change: dict[str, Any], why: str) -> None:
    plain = {"sampler": None, "batch_sampler": None, "batch_size": 8, "collate_fn": pad, "shuffle": True}
    assert obstacle(plain) == "" and why in obstacle({**plain, **change})


def test_a_framework_that_rebuilds_the_loader_keeps_the_sampler(applied: Any) -> None:
    accelerate = pytest.importorskip("accelerate")
    with applied(length_buckets=True) as context:
        loader = accelerate.Accelerator(cpu=True).prepare(DataLoader(Texts(), 8, shuffle=True, collate_fn=pad))
        seen = torch.cat([y for _, y in loader])
    assert sorted(seen.tolist()) == list(range(NUM)) and len(context.changes) == 1 and context.declined == []


def test_known_lengths_belong_to_their_dataset() -> None:
    texts, plain = Texts(), [torch.zeros(3), torch.zeros(5)]
    known = KnownLengths()
    assert known.of(texts).tolist() == LENGTHS.tolist()
    assert list(known.of(plain)) == [3, 5], "which no weak reference follows"
    assert known.of(texts).tolist() == LENGTHS.tolist()


def test_lengths_are_measured_once_if_the_loader_is_rebuilt(applied: Any) -> None:
    dataset, spent_ns = Texts(), []
    with applied(length_buckets=True) as context:
        for _ in range(2):
            list(DataLoader(dataset, batch_size=8, shuffle=True, collate_fn=pad))
            spent_ns.append(context.once_ns)
    assert spent_ns[1] == spent_ns[0] > 0
