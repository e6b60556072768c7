"""The techniques for pictures and for their bytes as tune asks them: when they apply, and why not."""

from __future__ import annotations

import io
import multiprocessing
from typing import Any

import msgspec
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from slipstream.records import Choice, Recipe, StackCount, TensorFacts
from slipstream.techniques import byte_transfer, fast_decode, scaled_decode
from slipstream.techniques.observation import Observation
from slipstream.testing.jpegs import jpeg
from slipstream.testing.sessions import made_environment, made_loader, made_session
from slipstream.tune.conflicts import find_conflicts


def decoding(leaf: str = "PIL/ImageFile.py:load", **session: Any) -> Observation:
    made = made_session(**session)
    stack = StackCount("worker", "input", "decode", "train.py", 7, "__getitem__", "", leaf, True, 0, 50)
    return Observation(msgspec.structs.replace(made, stacks=[stack]))


@pytest.mark.parametrize("module", [fast_decode, scaled_decode])
def test_only_where_pillow_was_seen_decoding(module: Any) -> None:
    assert module.applies(decoding()).is_yes
    assert module.applies(decoding("cv2/__init__.py:imread")).reason == "Pillow was not seen decoding pictures"
    assert module.applies(Observation(made_session())).reason == "Pillow was not seen decoding pictures"
    assert module.applies(decoding(has_loader=False)).reason == "the script has no DataLoader"


def test_the_two_do_not_combine() -> None:
    cards = {"fast_decode": fast_decode.CARD, "scaled_decode": scaled_decode.CARD, "bytes": byte_transfer.CARD}
    (conflict,) = find_conflicts(cards)
    assert (conflict.left, conflict.right) == ("fast_decode", "scaled_decode")


@pytest.mark.parametrize("name", ["fast_decode", "scaled_decode"])
def test_said_once_something_was_done_and_not_before(riding: Any, name: str) -> None:
    with riding((name, True if name == "fast_decode" else 1)) as rig:
        DataLoader([1, 2])
        assert rig.changes == [] == rig.declined
        Image.open(io.BytesIO(jpeg())).convert("RGB").crop((0, 0, 60, 60)).resize((20, 20))
        assert len(rig.changes) == 1 and rig.changes[0].startswith(f"{name}: JPEGs")


def test_of_spawned_workers_it_is_said_when_they_are_made(riding: Any) -> None:
    with riding("fast_decode") as rig:
        DataLoader([1, 2], num_workers=1, multiprocessing_context="spawn")
        assert len(rig.changes) == 1


def test_the_start_method_is_asked_for_and_not_settled(riding: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts: Any = multiprocessing.context
    monkeypatch.setattr(contexts._default_context, "_actual_context", None)
    with riding("fast_decode"):
        DataLoader([1, 2], num_workers=1)
        assert multiprocessing.get_start_method(allow_none=True) is None, "the script may still set it"


def images(**changes: Any) -> Observation:
    facts = TensorFacts("[0]", [32, 3, 224, 224], "float32", "cpu", 19_000_000, was_bytes=True)
    loader = made_loader(**{"num_workers": 2, "tensor_facts": [facts], **changes})
    return Observation(made_session(environment=made_environment(device="cuda:0"), transfer_ms=5.0, loader=loader))


def test_bytes_are_for_images_workers_and_accelerators() -> None:
    assert byte_transfer.applies(images()).is_yes
    assert "on cpu" in byte_transfer.applies(Observation(made_session())).reason
    noise = [TensorFacts("[0]", [32, 3, 224, 224], "float32", "cpu", 19_000_000)]
    assert "were bytes" in byte_transfer.applies(images(tensor_facts=noise)).reason
    alone = images(num_workers=0)
    assert "without workers" in byte_transfer.applies(alone).reason
    assert byte_transfer.applies_with(alone, Recipe((Choice("workers", 2),))).is_yes
    assert not byte_transfer.applies_with(alone, Recipe()).is_yes
    assert byte_transfer.applies_with(images(), Recipe()).is_yes, "the script has workers of its own"
    assert not byte_transfer.applies_with(images(), Recipe((Choice("workers", 0),))).is_yes


def test_bytes_decline_where_there_is_no_device(riding: Any) -> None:
    if torch.cuda.is_available() or torch.xpu.is_available():
        pytest.skip("there is one")
    with riding("byte_transfer") as rig:
        assert rig.declined == ["byte_transfer: there is no CUDA, ROCm or XPU device here"]
