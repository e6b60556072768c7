import subprocess
import sys

import msgspec
import torch

from slipstream.records import Environment, Gpu, TorchFacts
from slipstream.runner.machine import read_environment
from slipstream.runner.torch_facts import gpu_present_but_unused, read_torch_facts


def facts_with(**changes: object) -> TorchFacts:
    plain = {"accelerator": "", "accelerator_build": "", "device": "cpu"}
    return msgspec.structs.replace(read_torch_facts(), **{**plain, **changes})


def machine_with(*gpus: str) -> Environment:
    return msgspec.structs.replace(read_environment("."), gpus=[Gpu(name, 1 << 34) for name in gpus])


def test_this_torch() -> None:
    facts = read_torch_facts("cpu")
    assert facts.version == torch.__version__
    assert facts.num_threads == torch.get_num_threads()
    assert facts.device == "cpu"
    assert facts.cpu_capability
    assert not facts.has_tf32
    assert facts.has_fast_bf16 == (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    assert msgspec.json.decode(msgspec.json.encode(facts), type=TorchFacts) == facts


def test_switches_are_seen() -> None:
    assert not read_torch_facts().deterministic
    torch.use_deterministic_algorithms(True)
    try:
        assert read_torch_facts().deterministic
    finally:
        torch.use_deterministic_algorithms(False)
    with torch.autocast("cpu"):
        assert read_torch_facts("cpu").autocast_seen
    assert not read_torch_facts("cpu").autocast_seen
    if torch.set_flush_denormal(True):
        try:
            assert read_torch_facts().flush_denormal
        finally:
            torch.set_flush_denormal(False)
    assert not read_torch_facts().flush_denormal


def test_no_random_number_and_no_device_is_touched() -> None:
    code = (
        "import torch; from slipstream.runner.torch_facts import read_torch_facts; torch.manual_seed(0); "
        "state = torch.get_rng_state(); torch.set_default_device('meta'); read_torch_facts(); "
        "assert torch.equal(state, torch.get_rng_state()); assert not torch.cuda.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_gpu_that_stands_idle() -> None:
    gpu = machine_with("Made GPU")
    assert "built for the CPU only" in gpu_present_but_unused(gpu, facts_with())
    assert "CUDA_VISIBLE_DEVICES" in gpu_present_but_unused(gpu, facts_with(accelerator_build="12.8"))
    sentence = gpu_present_but_unused(gpu, facts_with(accelerator_build="12.8", accelerator="cuda"))
    assert sentence.startswith("The device is the CPU although a GPU is present (Made GPU)")
    assert '.to("cuda")' in sentence
    assert '.to("mps")' in gpu_present_but_unused(machine_with(), facts_with(accelerator="mps"))


def test_nothing_to_say() -> None:
    assert gpu_present_but_unused(machine_with(), facts_with()) == ""
    on_gpu = facts_with(accelerator_build="12.8", accelerator="cuda", device="cuda:0")
    assert gpu_present_but_unused(machine_with("Made GPU"), on_gpu) == ""
    assert gpu_present_but_unused(machine_with("Made GPU"), None) == ""
