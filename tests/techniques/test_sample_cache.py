from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from slipstream.records import Length, Site
from slipstream.techniques import batched_fetch, sample_cache
from slipstream.techniques._core.observation import Observation
from slipstream.testing.made_sessions import made_loader, made_session


def seen(length: Length | None = None, **loader: Any) -> Observation:
    session = made_session(loader=made_loader(**loader))
    return Observation(msgspec.structs.replace(session, length=length))


def test_it_declines_with_a_reason(tmp_path: Path) -> None:
    assert sample_cache.applies(seen()).is_yes and sample_cache.settings(seen()) == [True]
    assert "no DataLoader" in sample_cache.applies(Observation(made_session(has_loader=False))).reason
    assert "iterable" in sample_cache.applies(seen(is_iterable=True)).reason
    assert "batches" in sample_cache.applies(seen(batch_size=None)).reason
    assert "in memory already" in sample_cache.applies(seen(dataset_name="TensorDataset")).reason
    assert "spawned" in sample_cache.applies(seen(num_workers=2, start_method="spawn")).reason
    assert "one epoch" in sample_cache.applies(seen(Length(num_epochs=1))).reason
    folds = Site("train.py", 9, "for fold in range(5):")
    assert sample_cache.applies(seen(Length(num_epochs=1, around=folds))).is_yes
    assert sample_cache.applies(seen(Length(num_epochs=2))).is_yes
    script = tmp_path / "train.py"
    script.write_text("class Rows:\n    def __getitem__(self, i):\n        return self.x[i]\n")
    rows = seen(getitem_site=Site(str(script), 2, "", "__getitem__"), dataset_name="Rows")
    assert "in memory already" in sample_cache.applies(rows).reason


def test_it_conflicts_with_batched_fetch() -> None:
    assert set(sample_cache.CARD.claims) & set(batched_fetch.CARD.claims)


def test_the_edit_names_the_loader() -> None:
    (edit,) = sample_cache.edit(seen(), True)
    assert edit.kind == "by_hand" and edit.site is not None and edit.reason


class Features(Dataset[Any]):
    """Counts how often it is called, in any process."""

    def __init__(self, is_random: bool = False) -> None:
        self.is_random = is_random

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        ASKED[index] += 1
        return torch.full((4,), float(index)) + (torch.rand(4) if self.is_random else 0.0)


ASKED = mmap.mmap(-1, 64)  # shared by all processes, and no fingerprint covers its contents


def test_samples_of_the_next_epoch_are_cached_before_a_race(applied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda pid: {0, 1}
    )  # each filling process requests a few samples again
    torch.manual_seed(1)
    bare = [batch.tolist() for batch in DataLoader(Features(), batch_size=8, shuffle=True)]
    with applied("sample_cache") as context:
        context.is_racing = True
        torch.manual_seed(1)
        loader = DataLoader(Features(), batch_size=8, shuffle=True)
        batches = iter(loader)
        ASKED[:] = bytes(64)
        assert [batch.tolist() for batch in batches] == bare
    assert sum(ASKED[:]) < 24, "a few are requested again, the rest comes from the cache"
    (said,) = [sentence for sentence in context.changes if "before the race" in sentence]
    assert "100% of the next epoch" in said and not context.declined and context.once_ns > 0


def test_nothing_is_cached_before_a_race_if_random_numbers_are_drawn(applied: Any) -> None:
    torch.manual_seed(1)
    bare = [batch.tolist() for batch in DataLoader(Features(is_random=True), batch_size=8, shuffle=True)]
    with applied("sample_cache") as context:
        context.is_racing = True
        torch.manual_seed(1)
        loader = DataLoader(Features(is_random=True), batch_size=8, shuffle=True)
        assert [batch.tolist() for batch in loader] == bare
    assert not context.changes and "random numbers are drawn" in context.declined[0]
