from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from slipstream.data.samples.batch_fetch import BatchedFetch, can_gather, gather_of, is_same
from slipstream.data.samples.pure_index import only_indexes, only_indexes_at
from slipstream.seams.patching import Patches

ROWS, CLASSES = torch.randn(37, 5), torch.randint(0, 3, (37,))


class Columns(Dataset[Any]):
    def __init__(self) -> None:
        self.x = np.arange(74, dtype=np.float32).reshape(37, 2)
        self.y = np.arange(37)

    def __len__(self) -> int:
        return 37

    def __getitem__(self, index: int) -> Any:
        """A row and its class."""
        row = torch.from_numpy(self.x[index])
        return row.double() / 255, self.y[index]


class Named(Columns):
    def __getitem__(self, idx: int) -> Any:
        return {"x": torch.tensor(self.x[idx], dtype=torch.float32), "y": self.y[idx]}


class Reshaped(Columns):
    def __getitem__(self, index: int) -> Any:
        return self.x[index].reshape(2, 1), self.y[index]


class Branching(Columns):
    def __getitem__(self, index: int) -> Any:
        if index % 2:
            return self.x[index] * 2
        return self.x[index]


class Elsewhere(Columns):
    def __getitem__(self, index: int) -> Any:
        return self.x[index - 1], self.y[index]


class Summed(Columns):
    def __getitem__(self, index: int) -> Any:
        return self.x[index].sum(), self.y[index]


class Listed(Columns):
    """A list cannot be indexed with many indices at once."""

    def __init__(self) -> None:
        super().__init__()
        self.y = list(range(37))  # type: ignore[assignment]


ARRAYS = [TensorDataset(ROWS, CLASSES), Columns(), Named(), Subset(Columns(), [3, 1, 30]), Subset(Named(), range(9))]


@pytest.mark.parametrize("dataset", ARRAYS, ids=lambda dataset: type(dataset).__name__)
def test_array_datasets_give_the_same_batch_when_indexed_at_once(dataset: Any) -> None:
    gather = gather_of(dataset)
    assert gather is not None and can_gather(dataset, None)
    indices = [0, 2, 1, 1]
    assert is_same(gather(torch.tensor(indices)), default_collate([dataset[index] for index in indices]))


@pytest.mark.parametrize("kind", [Reshaped, Branching, Elsewhere, Summed])
def test_a_getitem_that_does_more_than_index_is_refused(kind: Any) -> None:
    assert not only_indexes(kind.__getitem__) and not can_gather(kind(), None)


@pytest.mark.parametrize("kind", [Columns, Named, Reshaped, Branching, Elsewhere, Summed])
def test_only_indexes_at_agrees(kind: Any) -> None:
    line = kind.__getitem__.__code__.co_firstlineno
    assert only_indexes_at(__file__, line) == only_indexes(kind.__getitem__) == (kind in (Columns, Named))
    assert not only_indexes_at(__file__, line + 1) and not only_indexes_at("/no/such/file.py", 1)


def test_a_column_that_cannot_be_indexed_at_once_is_refused() -> None:
    assert only_indexes(Listed.__getitem__) and not can_gather(Listed(), None)


def test_a_custom_collate_fn_is_refused() -> None:
    assert not can_gather(Columns(), lambda samples: samples)


def test_is_same_compares_bits_and_strides() -> None:
    square = torch.arange(4.0).reshape(2, 2)
    assert is_same([square], [square.clone()]) and is_same(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    assert not is_same(square, square.T.contiguous().T)
    assert not is_same(torch.tensor([0.0]), torch.tensor([-0.0])) and not is_same((square,), [square])


# --- in a loader ----------------------------------------------------------------------------------------------------


def _epochs(loader: Any, number: int = 2) -> list[Any]:
    torch.manual_seed(5)
    return [batch for _ in range(number) for batch in loader] + [torch.rand(3)]


@pytest.mark.parametrize("dataset", ARRAYS, ids=lambda dataset: type(dataset).__name__)
@pytest.mark.parametrize("how", [{}, {"shuffle": True}, {"shuffle": True, "drop_last": True}, {"num_workers": 2}])
def test_loaders_give_the_same_batches_in_the_same_order(dataset: Any, how: dict[str, Any]) -> None:
    bare = _epochs(DataLoader(dataset, batch_size=2, **how))
    told: list[str] = []
    patches = Patches(lambda seam, fault: pytest.fail(f"{seam}: {fault}"), lambda: False)
    BatchedFetch(told.append).install(patches)
    try:
        ours = _epochs(DataLoader(dataset, batch_size=2, **how))
    finally:
        patches.close()
    assert is_same(ours, bare), "the random numbers after them too"
    assert told == [] and patches.leftovers == []


def test_the_users_generator_ends_in_the_same_state() -> None:
    def train() -> tuple[list[Any], torch.Tensor]:
        generator = torch.Generator().manual_seed(3)
        batches = _epochs(DataLoader(ARRAYS[0], batch_size=4, shuffle=True, generator=generator))
        return batches, generator.get_state()

    bare = train()
    patches = Patches(lambda seam, fault: pytest.fail(f"{seam}: {fault}"), lambda: False)
    BatchedFetch(lambda why: None).install(patches)
    try:
        ours = train()
    finally:
        patches.close()
    assert is_same(ours[0], bare[0]) and torch.equal(ours[1], bare[1])


def test_a_batch_that_differs_is_replaced_by_torchs_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "slipstream.data.samples.batch_fetch.gather_of", lambda dataset: lambda indices: [ROWS[indices] + 1]
    )
    told: list[str] = []
    patches = Patches(lambda seam, fault: pytest.fail(f"{seam}: {fault}"), lambda: False)
    BatchedFetch(told.append).install(patches)
    try:
        batches = list(DataLoader(TensorDataset(ROWS), batch_size=10))
    finally:
        patches.close()
    assert torch.equal(torch.cat([x for (x,) in batches]), ROWS)
    assert told == ["a batch that was indexed at once differs from torch's"]
