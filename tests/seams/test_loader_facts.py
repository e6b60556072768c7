"""The facts about a loader that a framework made from the script's loader."""

import functools
from typing import Any

import pytest
from torch.utils.data import DataLoader

from slipstream.seams.loader import code_of, read_loader


def test_a_prepared_loader_keeps_its_batch_size() -> None:
    accelerate = pytest.importorskip("accelerate")
    loader = accelerate.Accelerator(cpu=True).prepare(DataLoader(list(range(40)), batch_size=4, shuffle=True))
    inner = loader.base_dataloader  # the loader that is iterated over
    assert inner.batch_size is None, "Accelerate has changed: the sampler need not be asked any more"
    assert read_loader(inner, 0, None, None).batch_size == 4


def test_loader_of_whole_batches_has_no_batch_size() -> None:
    assert read_loader(DataLoader(list(range(40)), batch_size=None), 0, None, None).batch_size is None
    assert read_loader(DataLoader(list(range(40)), batch_size=4), 0, None, None).batch_size == 4


class Collator:
    def __call__(self, samples: list[Any]) -> list[Any]:
        return samples

    def gather(self, samples: list[Any]) -> list[Any]:
        return samples


def test_the_code_that_builds_batches_is_found_behind_objects_and_partials() -> None:
    collator = Collator()
    assert code_of(collator) is Collator.__call__.__code__
    assert code_of(functools.partial(collator)) is Collator.__call__.__code__
    assert code_of(collator.gather) is Collator.gather.__code__
    assert code_of(list) is None


def test_collate_object_has_a_site() -> None:
    facts = read_loader(DataLoader([1, 2], collate_fn=Collator()), 0, None, None)
    assert facts.collate_site is not None and facts.collate_site.function == "__call__"
