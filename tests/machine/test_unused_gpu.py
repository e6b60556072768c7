import msgspec

from slipstream.machine.gpu import gpu_present_but_unused
from slipstream.records import Environment, Gpu, TorchFacts
from slipstream.testing.made_sessions import made_environment


def facts_with(**changes: object) -> TorchFacts:
    plain = {"accelerator": "", "accelerator_build": "", "device": "cpu"}
    facts = made_environment().torch
    assert facts is not None
    return msgspec.structs.replace(facts, **{**plain, **changes})


def machine_with(*gpus: str) -> Environment:
    return msgspec.structs.replace(made_environment(), torch=None, gpus=[Gpu(name, 1 << 34) for name in gpus])


def test_unused_gpu_is_reported() -> None:
    gpu = machine_with("Made GPU")
    assert "built for the CPU only" in gpu_present_but_unused(gpu, facts_with())
    assert "CUDA_VISIBLE_DEVICES" in gpu_present_but_unused(gpu, facts_with(accelerator_build="12.8"))
    sentence = gpu_present_but_unused(gpu, facts_with(accelerator_build="12.8", accelerator="cuda"))
    assert sentence.startswith("The device is the CPU although a GPU is present (Made GPU)")
    assert '.to("cuda")' in sentence
    assert '.to("mps")' in gpu_present_but_unused(machine_with(), facts_with(accelerator="mps"))


def test_no_sentence_without_an_unused_gpu() -> None:
    assert gpu_present_but_unused(machine_with(), facts_with()) == ""
    on_gpu = facts_with(accelerator_build="12.8", accelerator="cuda", device="cuda:0")
    assert gpu_present_but_unused(machine_with("Made GPU"), on_gpu) == ""
    assert gpu_present_but_unused(machine_with("Made GPU"), None) == ""
