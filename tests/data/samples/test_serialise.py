from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.data.samples.serialise import UnkeepableError, pack, read_payload, unpack

Pair = namedtuple("Pair", "first second")


def through(sample: Any) -> Any:
    return unpack(bytearray(b"\0" * 64) + pack(sample).to_bytes(), 64)


TOKENS = torch.arange(10)
SAMPLES = [
    (torch.randn(3, 4, 4), 7),
    {"x": np.arange(12, dtype=np.int16).reshape(3, 4).T, "name": "a.jpg", "none": None},
    [torch.randn(5, 6)[1:4, 2:5], True, 1, 1.0, float("nan"), -0.0, b"raw", 2j],
    Pair(np.float32(3), OrderedDict(b=torch.tensor(True), a=torch.empty(0, 3))),
    (TOKENS[:-1], TOKENS[1:]),
    (torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(3).bfloat16(), torch.zeros(1, 4).T),
    (torch.ones(1).expand(5), np.zeros((0, 4)), np.array(3), np.array(["2020-01-01"], dtype="datetime64[D]")),
    ([], (), {}, ((1, (2, [3])),)),
]


@pytest.mark.parametrize("sample", SAMPLES, ids=range(len(SAMPLES)))
def test_bits_types_and_strides_are_preserved(sample: Any) -> None:
    back = through(sample)
    assert pack(back).is_same(pack(sample)) and type(back) is type(sample)


def test_strides_and_flags_are_preserved() -> None:
    array = np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1)
    array.flags.writeable = False
    tensor = torch.randn(4, 8, 8)[:, 1:7, 1:7]
    again = through((array, tensor))
    assert again[0].strides == array.strides and not again[0].flags.writeable and (again[0] == array).all()
    assert again[1].stride() == tensor.stride() and torch.equal(again[1], tensor)


def test_shared_memory_within_a_sample_is_preserved() -> None:
    inputs, targets = through((TOKENS[:-1], TOKENS[1:]))
    inputs[1] = 99
    assert targets[0] == 99 and TOKENS[1] == 1


def test_the_copy_shares_nothing() -> None:
    memory = bytearray(pack((torch.zeros(4), [1], np.zeros(2))).to_bytes())
    first = unpack(memory, 0)
    first[0].add_(1)
    first[1].append(2)
    first[2][:] = 5
    second = unpack(memory, 0)
    assert second[0].sum() == 0 and second[1] == [1] and second[2].sum() == 0


class Odd(torch.Tensor):
    pass


REFUSED = [
    object(),
    {1, 2},
    torch.ones(2, requires_grad=True),
    torch.ones(2, 2).to_sparse(),
    torch.ones(2).as_subclass(Odd),
    torch.zeros(1000)[::100],
    np.array([object()]),
    np.arange(4)[::-1],
    np.zeros(3, dtype=[("a", "f4")]),
    {(1, 2): 3},
    torch.ones(2, dtype=torch.complex64).conj(),
]


@pytest.mark.parametrize("part", REFUSED, ids=range(len(REFUSED)))
def test_samples_that_cannot_be_copied_safely_are_refused(part: Any) -> None:
    with pytest.raises(UnkeepableError):
        pack((part, 1))


def test_the_same_object_twice_is_refused() -> None:
    one = torch.zeros(2)
    array = np.zeros(8)
    for sample in ((one, one), [one, {"again": one}], (array[:6], array[2:]), (array, array[1:])):
        with pytest.raises(UnkeepableError):
            pack(sample)


def test_is_same_compares_bits() -> None:
    assert not pack(0.0).is_same(pack(-0.0)) and not pack(1).is_same(pack(True)) and not pack((1,)).is_same(pack([1]))
    assert pack(float("nan")).is_same(pack(float("nan"))) and not pack(np.float32(1)).is_same(pack(1.0))
    assert not pack(torch.zeros(2)).is_same(pack(-torch.zeros(2)))
    payload = pack(SAMPLES[0])
    assert read_payload(payload.to_bytes(), 0).is_same(payload)
