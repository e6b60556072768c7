"""What is read of a loader that a framework made of the script's own."""

import pytest
from torch.utils.data import DataLoader

from slipstream.seams.loader import read_loader


def test_a_prepared_loader_keeps_its_batch_size() -> None:
    accelerate = pytest.importorskip("accelerate")
    loader = accelerate.Accelerator(cpu=True).prepare(DataLoader(list(range(40)), batch_size=4, shuffle=True))
    inner = loader.base_dataloader  # the one that is iterated
    assert inner.batch_size is None, "Accelerate has changed: the sampler need not be asked any more"
    assert read_loader(inner, 0, None, None).batch_size == 4


def test_a_loader_of_whole_batches_has_none() -> None:
    assert read_loader(DataLoader(list(range(40)), batch_size=None), 0, None, None).batch_size is None
    assert read_loader(DataLoader(list(range(40)), batch_size=4), 0, None, None).batch_size == 4
