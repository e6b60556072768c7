"""Which loaders get another batch size, and what is reported for the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler, TensorDataset

from slipstream.records import Choice, Recipe
from slipstream.techniques import batch_size
from slipstream.techniques._core.observation import Observation
from slipstream.testing.made_sessions import made_session
from slipstream.testing.technique_contract import RecipeRun

DATA = TensorDataset(torch.arange(40.0))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(40))


class Own(BatchSampler):
    pass


@pytest.fixture
def sizes() -> Callable[..., list[int]]:
    """Returns the size of the first batch of each loader. Loaders are built in order, with a batch size of 6
    requested."""

    def build(*makers: Callable[[], DataLoader[Any]]) -> list[int]:
        run = RecipeRun(Recipe((Choice("batch_size", 6),)))
        found: list[int] = []

        def training() -> Any:
            for make in makers:
                batch = next(iter(make()))
                found.append(len(batch[0] if isinstance(batch, list) else batch))

        run.run(training)
        assert not run.complaints and run.context is not None
        build.messages = [*run.context.changes, *run.context.declined]  # type: ignore[attr-defined]
        return found

    return build


def test_the_first_loader_and_shuffling_loaders_change(sizes: Any) -> None:
    plain = [
        lambda: DataLoader(DATA, batch_size=4),
        lambda: DataLoader(DATA, batch_size=5),  # a second, sequential loader, as for evaluation
        lambda: DataLoader(DATA, 4, True),
        lambda: DataLoader(DATA, batch_size=4, sampler=RandomSampler(DATA)),
        lambda: DataLoader(DATA, batch_size=4, sampler=SequentialSampler(DATA)),
    ]
    assert sizes(*plain) == [6, 5, 6, 6, 4]
    assert any("batch_size 4 -> 6 at test_batch_size.py:" in one for one in sizes.messages)


def test_length_and_last_batch_match_the_new_size(sizes: Any) -> None:
    lengths = []

    def make() -> DataLoader[Any]:
        loader = DataLoader(DATA, batch_size=4, shuffle=True)
        lengths.append(len(loader))
        return loader

    assert sizes(make) == [6] and lengths == [7]


def test_iterable_datasets_and_torchs_batch_sampler_change(sizes: Any) -> None:
    assert sizes(lambda: DataLoader(Stream(), batch_size=4)) == [6]
    assert sizes(lambda: DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 4, False))) == [6]


def test_a_custom_batch_sampler_is_not_changed(sizes: Any) -> None:
    assert sizes(lambda: DataLoader(DATA, batch_sampler=Own(RandomSampler(DATA), 4, False))) == [4]
    assert any("the script's own batch sampler, Own" in one for one in sizes.messages)


def test_without_a_loader_the_reason_says_what_to_do() -> None:
    import msgspec

    session = made_session()
    assert batch_size.applies(Observation(session)).is_yes
    bare = msgspec.structs.replace(session, loaders=[])
    answer = batch_size.applies(Observation(bare))
    assert not answer.is_yes and "change the batch size in the script" in answer.reason
