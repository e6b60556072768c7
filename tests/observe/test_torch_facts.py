import subprocess
import sys
from functools import partial

import msgspec
import pytest
import torch

from slipstream.observe.torch_facts import read_torch_facts
from slipstream.records import TorchFacts


def test_this_torch() -> None:
    facts = read_torch_facts("cpu")
    assert facts.version == torch.__version__
    assert facts.num_threads == torch.get_num_threads()
    assert facts.device == "cpu"
    assert facts.cpu_capability
    assert not facts.has_tf32
    assert msgspec.json.decode(msgspec.json.encode(facts), type=TorchFacts) == facts


@pytest.mark.parametrize(
    ("questions", "capabilities", "has_fast_bf16"),
    [
        ({}, {}, False),
        ({"_is_avx512_bf16_supported": True}, {}, True),
        ({"_is_amx_tile_supported": True}, {}, True),
        ({"_is_avx512_bf16_supported": False}, {"bf16": True}, True),
        ({"_is_avx512_bf16_supported": False}, {"avx2": True}, False),
    ],
)
def test_units_of_the_processor(
    questions: dict[str, bool], capabilities: dict[str, bool], has_fast_bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, partial(questions.get, name, False), raising=False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert read_torch_facts("cpu").has_fast_bf16 is has_fast_bf16


def test_switches_are_read() -> None:
    assert not read_torch_facts().deterministic
    torch.use_deterministic_algorithms(True)
    try:
        assert read_torch_facts().deterministic
    finally:
        torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = True
    try:
        assert not read_torch_facts("cpu").deterministic, "the switch changes nothing on a CPU"
    finally:
        torch.backends.cudnn.deterministic = False
    if torch.set_flush_denormal(True):
        try:
            assert read_torch_facts().flush_denormal
        finally:
            torch.set_flush_denormal(False)
    assert not read_torch_facts().flush_denormal


def test_reading_draws_no_random_number_and_initialises_no_device() -> None:
    code = (
        "import torch; from slipstream.observe.torch_facts import read_torch_facts; torch.manual_seed(0); "
        "state = torch.get_rng_state(); torch.set_default_device('meta'); read_torch_facts(); "
        "assert torch.equal(state, torch.get_rng_state()); assert not torch.cuda.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
