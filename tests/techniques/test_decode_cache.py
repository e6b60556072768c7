"""decode_cache with typical loaders: batches are the same, whatever happens to the cache."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from slipstream.data.images import decode_cache as keeping
from slipstream.data.images import pixel_store
from slipstream.data.images.cache_folder import survey
from slipstream.machine import free_memory
from slipstream.records import Length, Site
from slipstream.techniques import decode_cache
from slipstream.techniques._core.observation import Observation
from slipstream.testing import trainings
from slipstream.testing.made_sessions import made_loader, made_session, made_stack
from slipstream.testing.technique_contract import battery


class Photographs(Dataset[Any]):
    """A typical dataset: open, crop at random, flip at random, convert to floats."""

    def __init__(self, folder: Path, size: int = 16) -> None:
        self.paths = sorted(folder.glob("*"))
        self.size = size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image: Any = Image.open(self.paths[index]).convert("RGB")
        side = int(min(image.size) * float(torch.empty(()).uniform_(0.4, 1.0)))
        left, top = random.randint(0, image.width - side), int(np.random.randint(0, image.height - side + 1))
        image = image.resize(
            (self.size, self.size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side)
        )
        if torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255, index


def make(folder: Path, num_images: int = 12) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(num_images):
        size = (int(rng.integers(30, 60)), int(rng.integers(30, 60)))
        mode = ("RGB", "L", "CMYK", "RGB")[number % 4]
        bands = len(Image.new(mode, (1, 1)).getbands())
        image = Image.frombytes(mode, size, rng.integers(0, 256, size[0] * size[1] * bands, dtype=np.uint8).tobytes())
        image.save(folder / f"{number:02d}.{'png' if number % 4 == 3 else 'jpg'}")
    return folder


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    return make(tmp_path / "photographs")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache. Files made a moment ago count as old."""
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(keeping, "SETTLED_NS", 0)
    monkeypatch.setattr(keeping, "SLOW_S", 1e9)
    return tmp_path / "cache"


def states() -> list[Any]:
    return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]


def epochs(dataset: Any, num_workers: int, num_epochs: int = 2) -> list[Any]:
    """Returns every batch, and the random numbers that the script would draw next."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    loader = DataLoader(dataset, batch_size=5, shuffle=True, num_workers=num_workers)
    found = []
    for _ in range(num_epochs):
        found.append([(x.numpy().tobytes(), y.tolist()) for x, y in loader])
    return [*found, states()]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_the_same(num_workers: int, photographs: Path, applied: Callable[..., Any]) -> None:
    dataset = Photographs(photographs)
    bare = epochs(dataset, num_workers)
    with applied("decode_cache") as context:
        assert epochs(dataset, num_workers) == bare
        assert survey().num_images == 12
        assert epochs(dataset, num_workers) == bare
    with applied("decode_cache"):  # a later run, after another process cleared half of the cache
        for entry in list(Path(survey().folder).rglob("*.pixels"))[::2]:
            entry.unlink()
        assert epochs(dataset, num_workers) == bare
    assert any("decoded images are cached in" in sentence for sentence in context.changes) and not context.declined


def test_the_contract_with_a_training_on_photographs(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_photographs(device: str = "cpu", checkpoint: bytes = b"", model: nn.Module | None = None) -> Any:
        torch.manual_seed(trainings.SEED)
        random.seed(trainings.SEED)
        np.random.seed(trainings.SEED)
        loader = DataLoader(Photographs(photographs, 8), batch_size=4, shuffle=True)
        out = trainings.TrainingOutcome()
        net = (model or nn.Sequential(nn.Flatten(), nn.Linear(192, 12))).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        out.models, out.optimizers, out.loader = {"net": net}, {"sgd": optimizer}, loader
        if checkpoint:
            out.resume(checkpoint)
        for _ in range(2):
            for x, y in loader:
                loss: Any = nn.functional.cross_entropy(net(x.to(device)), y.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                out.losses.append(loss.item())
        return out.save()

    monkeypatch.setitem(trainings.TRAININGS, "photographs", on_photographs)
    results = {result.name: result for result in battery("decode_cache", trainings=["photographs"])}
    assert all(result.is_ok for result in results.values()), results
    assert "applies: True" in results["photographs: applies or says why not"].detail
    assert "are cached in" in results["photographs: numerics"].detail and survey().num_images == 12


def test_the_change_is_reported_when_an_image_is_stored(photographs: Path, applied: Callable[..., Any]) -> None:
    with applied("decode_cache") as context:
        list(DataLoader(Numbers(), num_workers=1))
        assert context.changes == [], "Pillow is imported, and nothing was decoded"
        list(DataLoader(Photographs(photographs), num_workers=1))
        assert len(context.changes) == 1 and "are cached in" in context.changes[0]


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_reason_found_in_any_process_is_reported(
    num_workers: int, photographs: Path, applied: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(pixel_store, "_write_whole", write)
    with applied("decode_cache") as context:
        list(DataLoader(Photographs(photographs), num_workers=num_workers))
    assert len(context.declined) == 1 and "the disk is full" in context.declined[0] and context.changes == []


def test_dropped_datasets_take_no_budget(
    photographs: Path, applied: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty folds are created and dropped, with memory for two datasets."""
    size = sum(width * height * 4 for width, height in (Image.open(path).size for path in photographs.glob("*")))
    monkeypatch.setattr(free_memory, "free_bytes", lambda: 4 * size)
    with applied("decode_cache") as context:
        for _ in range(20):
            DataLoader(Photographs(photographs))
            whole = Photographs(photographs)
            folds = [Subset(whole, range(6)), Subset(whole, range(12))]
            loaders = [DataLoader(fold) for fold in folds]
        list(loaders[1])
    assert survey().num_images == 12 and not context.declined


def test_the_next_epoch_is_decoded_before_a_race(photographs: Path, applied: Callable[..., Any]) -> None:
    dataset = Photographs(photographs)
    bare = epochs(dataset, 0)
    with applied("decode_cache") as context:
        context.is_racing = True
        assert epochs(dataset, 0) == bare, "the script's random numbers are unchanged"
    (said,) = [sentence for sentence in context.changes if "before the race" in sentence]
    assert "100% of the next epoch" in said and "12 images stored" in said
    assert not context.declined
    assert context.once_ns > 0, "filling does not count as the start of an epoch"


def test_without_images_filling_ends_soon(applied: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})

    class Counted(Dataset[Any]):
        asked = torch.zeros((), dtype=torch.int64).share_memory_()

        def __len__(self) -> int:
            return 1000

        def __getitem__(self, index: int) -> int:
            self.asked += 1
            return index

    with applied("decode_cache") as context:
        context.is_racing = True
        next(iter(DataLoader(Counted(), batch_size=2)))
    assert 16 <= int(Counted.asked) <= 2 + 16 * 2, "two processes may count at the same time"


def test_no_filling_after_the_first_update(photographs: Path, applied: Callable[..., Any]) -> None:
    with applied("decode_cache") as context:
        context.is_racing = True
        parameter = nn.Parameter(torch.zeros(()))
        torch.optim.SGD([parameter], lr=0.1).step()
        next(iter(DataLoader(Photographs(photographs), batch_size=2)))
    assert survey().num_images == 2 and not any("before the race" in sentence for sentence in context.changes)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(4))


def test_a_cache_that_cannot_be_filled_is_reported(
    tmp_path: Path, photographs: Path, applied: Callable[..., Any]
) -> None:
    dataset: Any = Photographs(photographs)
    dataset.handle = open(sorted(photographs.glob("*"))[0], "rb")  # noqa: SIM115
    with applied("decode_cache") as context:
        context.is_racing = True
        list(DataLoader(Stream()))
        next(iter(DataLoader(dataset, batch_size=2)))
    dataset.handle.close()
    first, second = context.declined
    assert "iterable" in first and "BufferedReader" in second


def test_a_folder_that_cannot_be_written_is_declined(
    tmp_path: Path, photographs: Path, applied: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "file"))
    dataset = Photographs(photographs)
    bare = epochs(dataset, 0)
    with applied("decode_cache") as context:
        assert epochs(dataset, 0) == bare
    assert "cannot be written" in context.declined[0] and not context.changes


# --- when it applies --------------------------------------------------------------------------------------------------


def observed(stage: Any = "decode", **changes: Any) -> Observation:
    from slipstream.diagnose import diagnose

    stacks = [made_stack(stage, 10, 60), made_stack("transform", 11, 40)]
    session = made_session(input_ms=40.0, stacks=stacks, loader=made_loader(0, **changes))
    return Observation(diagnose(session))


def test_applies_if_decoding_takes_time() -> None:
    seen = observed()
    assert decode_cache.applies(seen).is_yes and decode_cache.settings(seen) == [True]
    assert decode_cache.CARD.causes[0] in [finding.cause for finding in seen.session.findings]
    refused = decode_cache.applies(observed("transform"))
    assert not refused.is_yes and refused.reason == "decoding is only 0% of the work on a batch"
    once = Observation(msgspec.structs.replace(seen.session, length=Length(num_epochs=1)))
    assert "one epoch" in decode_cache.applies(once).reason


def test_applies_if_the_source_opens_images(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text("from PIL import Image\ndef load(path):\n    return Image.open(path)\n")
    loader = made_loader(0, getitem_site=Site(str(source), 2, "load"))
    assert decode_cache.applies(Observation(made_session(loader=loader))).is_yes
    source.write_text("import numpy\n")
    assert "was not seen to decode" in decode_cache.applies(Observation(made_session(loader=loader))).reason
    assert "no DataLoader" in decode_cache.applies(Observation(made_session(has_loader=False))).reason
