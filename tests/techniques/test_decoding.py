"""When the techniques for images and for their bytes apply, and the reasons if they do not."""

from __future__ import annotations

import io
import multiprocessing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from slipstream.data.images.c_build import find_compiler
from slipstream.diagnose.summary import summarise
from slipstream.recipe.conflicts import find_conflicts
from slipstream.records import Choice, Recipe, Site, StackCount, TensorFacts
from slipstream.techniques import byte_transfer, fast_arrays, fast_decode, fast_resize, scaled_decode
from slipstream.techniques._core.observation import Observation
from slipstream.testing.jpegs import jpeg, write_jpegs
from slipstream.testing.made_sessions import made_environment, made_loader, made_session


def decoding(leaf: str = "PIL/ImageFile.py:load", **session: Any) -> Observation:
    made = made_session(**session)
    stack = StackCount("worker", "input", "decode", "train.py", 7, "__getitem__", "", leaf, True, 0, 50)
    return Observation(msgspec.structs.replace(made, stacks=[stack]))


@pytest.mark.parametrize("module", [fast_decode, scaled_decode])
def test_applies_only_if_pillow_was_seen_decoding(module: Any) -> None:
    assert module.applies(decoding()).is_yes
    assert module.applies(decoding("cv2/__init__.py:imread")).reason == "Pillow was not seen decoding images"
    assert module.applies(Observation(made_session())).reason == "Pillow was not seen decoding images"
    assert module.applies(decoding(has_loader=False)).reason == "the script has no DataLoader"


def test_the_two_do_not_combine() -> None:
    cards = {"fast_decode": fast_decode.CARD, "scaled_decode": scaled_decode.CARD, "bytes": byte_transfer.CARD}
    (conflict,) = find_conflicts(cards)
    assert (conflict.left, conflict.right) == ("fast_decode", "scaled_decode")


@pytest.mark.parametrize("name", ["fast_decode", "scaled_decode"])
def test_the_change_is_reported_when_it_happens(applied: Any, name: str) -> None:
    with applied((name, True if name == "fast_decode" else 1)) as context:
        DataLoader([1, 2])
        assert context.changes == [] == context.declined
        Image.open(io.BytesIO(jpeg())).convert("RGB").crop((0, 0, 60, 60)).resize((20, 20))
        assert len(context.changes) == 1 and context.changes[0].startswith(f"{name}: JPEGs")


def test_with_spawned_workers_the_change_is_reported_when_they_start(applied: Any) -> None:
    with applied("fast_decode") as context:
        DataLoader([1, 2], num_workers=1, multiprocessing_context="spawn")
        assert len(context.changes) == 1


def test_reading_the_start_method_does_not_fix_it(applied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts: Any = multiprocessing.context
    monkeypatch.setattr(contexts._default_context, "_actual_context", None)
    with applied("fast_decode"):
        DataLoader([1, 2], num_workers=1)
        assert multiprocessing.get_start_method(allow_none=True) is None, "the script can still set it"


def images(**changes: Any) -> Observation:
    facts = TensorFacts("[0]", [32, 3, 224, 224], "float32", "cpu", 19_000_000, was_bytes=True)
    loader = made_loader(**{"num_workers": 2, "tensor_facts": [facts], **changes})
    return Observation(made_session(environment=made_environment(device="cuda:0"), transfer_ms=5.0, loader=loader))


def test_byte_transfer_needs_images_workers_and_an_accelerator() -> None:
    assert byte_transfer.applies(images()).is_yes
    assert "on cpu" in byte_transfer.applies(Observation(made_session())).reason
    noise = [TensorFacts("[0]", [32, 3, 224, 224], "float32", "cpu", 19_000_000)]
    assert "were converted from bytes" in byte_transfer.applies(images(tensor_facts=noise)).reason
    alone = images(num_workers=0)
    assert "no workers" in byte_transfer.applies(alone).reason
    assert byte_transfer.applies_with(alone, Recipe((Choice("workers", 2),))).is_yes
    assert not byte_transfer.applies_with(alone, Recipe()).is_yes
    assert byte_transfer.applies_with(images(), Recipe()).is_yes, "the script has its own workers"
    assert not byte_transfer.applies_with(images(), Recipe((Choice("workers", 0),))).is_yes


def test_byte_transfer_declines_without_a_device(applied: Any) -> None:
    if torch.cuda.is_available() or torch.xpu.is_available():
        pytest.skip("there is one")
    with applied("byte_transfer") as context:
        assert context.declined == ["byte_transfer: there is no CUDA, ROCm or XPU device here"]


def resizing(count: int, leaf: str = "PIL/Image.py:resize", **session: Any) -> Observation:
    loading = "PIL/ImageFile.py:load"
    others = StackCount("worker", "input", "decode", "train.py", 7, "__getitem__", "", loading, True, 0, 60)
    stack = msgspec.structs.replace(others, stage="transform", leaf=leaf, count=count)
    made = made_session(num_workers=1, input_ms=30.0, work_ms=60.0, stacks=[others, stack], **session)
    return Observation(msgspec.structs.replace(made, summary=summarise(made)[0]))


def test_fast_resize_applies_to_pillow_only() -> None:
    if not find_compiler():
        pytest.skip("there is no C compiler")
    assert fast_resize.applies(resizing(40)).is_yes
    assert fast_resize.applies(resizing(1)).reason == "resizing by Pillow is 2% of the work on a batch"
    assert fast_resize.applies(resizing(40, "cv2/__init__.py:resize")).reason == "Pillow was not seen resizing images"
    assert fast_resize.applies(resizing(40, has_loader=False)).reason == "the script has no DataLoader"


def test_resizing_is_found_in_the_source_if_the_check_was_short(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    for text, is_yes in (("from PIL import Image\nimage.resize((4, 4))\n", True), ("array.resize((4, 4))\n", False)):
        script.write_text(text)
        loader = made_loader(getitem_site=Site(str(script), 2, "__getitem__"))
        observation = Observation(made_session(loader=loader))
        assert fast_resize.applies(observation).is_yes == (is_yes and bool(find_compiler()))


def test_resizing_needs_a_compiler(applied: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert "no C compiler" in fast_resize.applies(resizing(40)).reason
    with applied("fast_resize") as context:
        assert context.declined == ["fast_resize: there is no C compiler (cc, gcc or clang) on this machine"]
        Image.new("RGB", (100, 100)).resize((50, 50))
        assert context.changes == []
    assert "no C compiler" in fast_arrays.applies(resizing(40)).reason
    with applied("fast_arrays") as context:
        assert context.declined == ["fast_arrays: there is no C compiler (cc, gcc or clang) on this machine"]
    assert fast_arrays.applies(resizing(40, has_loader=False)).reason == "the script has no DataLoader"


def test_resizing_is_reported_when_it_happens(applied: Any) -> None:
    if not find_compiler():
        pytest.skip("there is no C compiler")
    with applied("fast_resize", "fast_decode") as context:
        Image.new("RGB", (9, 9)).resize((8, 8))
        assert context.changes == []
        Image.open(io.BytesIO(jpeg())).convert("RGB").crop((0, 0, 60, 60)).resize((50, 50))
        assert [
            change
            for change in context.changes
            if change.startswith("fast_resize: Image.resize is done by slipstream's C code")
        ]
        assert not [reason for reason in context.declined if reason.startswith("fast_resize")]


class Resized:
    """Photographs, cropped and resized as in a typical script."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        image = Image.open(self.paths[index]).convert("RGB")
        left = int(torch.randint(0, 20, ()))
        image = image.crop((left, 3, left + 70, 72)).resize((64, 64), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(image))


@pytest.mark.parametrize("recipe", [["fast_resize"], ["fast_resize", "fast_decode", "decode_cache"]])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_those_of_pillow(applied: Any, tmp_path: Path, num_workers: int, recipe: list[str]) -> None:
    dataset: Any = Resized(write_jpegs(tmp_path, 12))

    def read() -> list[torch.Tensor]:
        torch.manual_seed(3)
        return [*DataLoader(dataset, batch_size=4, shuffle=True, num_workers=num_workers), torch.get_rng_state()]

    bare = read()
    with applied(*recipe):
        for _ in range(2):
            assert all(torch.equal(ours, theirs) for ours, theirs in zip(read(), bare, strict=True))


def test_threads_resize_as_workers_do(applied: Any, tmp_path: Path) -> None:
    dataset: Any = Resized(write_jpegs(tmp_path, 12))

    def read() -> list[torch.Tensor]:
        torch.manual_seed(3)
        return list(DataLoader(dataset, batch_size=4, shuffle=True, num_workers=2))

    bare = read()
    with applied("fast_resize", ("thread_workers", 2)):
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(read(), bare, strict=True))
