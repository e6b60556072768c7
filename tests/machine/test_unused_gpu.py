import msgspec

from slipstream.machine.gpu import find_idle_gpu
from slipstream.records import Environment, Gpu, IdleGpu, TorchFacts
from slipstream.testing.made_sessions import made_environment


def facts_with(**changes: object) -> TorchFacts:
    plain = {"accelerator": "", "accelerator_build": "", "device": "cpu"}
    facts = made_environment().torch
    assert facts is not None
    return msgspec.structs.replace(facts, **{**plain, **changes})


def machine_with(*gpus: str) -> Environment:
    return msgspec.structs.replace(made_environment(), torch=None, gpus=[Gpu(name, 1 << 34) for name in gpus])


def test_unused_gpu_is_found_with_its_cause() -> None:
    gpu = machine_with("Made GPU")
    assert find_idle_gpu(gpu, facts_with()) == IdleGpu("Made GPU", "cpu_build")
    assert find_idle_gpu(gpu, facts_with(accelerator_build="12.8")) == IdleGpu("Made GPU", "invisible")
    seen = facts_with(accelerator_build="12.8", accelerator="cuda")
    assert find_idle_gpu(gpu, seen) == IdleGpu("Made GPU", "unused")
    assert find_idle_gpu(machine_with(), facts_with(accelerator="mps")) == IdleGpu("mps", "unused")


def test_nothing_is_found_without_an_unused_gpu() -> None:
    assert find_idle_gpu(machine_with(), facts_with()) is None
    on_gpu = facts_with(accelerator_build="12.8", accelerator="cuda", device="cuda:0")
    assert find_idle_gpu(machine_with("Made GPU"), on_gpu) is None
    assert find_idle_gpu(machine_with("Made GPU"), None) is None
