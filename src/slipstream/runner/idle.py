"""A GPU that stands idle, said plainly. From records alone: the parent process says it, and has no torch."""

from __future__ import annotations

from slipstream.records import Environment, TorchFacts


def gpu_present_but_unused(environment: Environment, torch_facts: TorchFacts | None) -> str:
    """One sentence where a GPU stands idle while the model lives on the CPU; "" where there is nothing to say."""
    facts = torch_facts or environment.torch
    if facts is None or facts.device.partition(":")[0] not in ("", "cpu"):
        return ""
    if environment.gpus and not facts.accelerator_build:
        return (
            f"The device is the CPU although a GPU is present ({environment.gpus[0].name}): "
            f"this torch ({facts.version}) was built for the CPU only. Install a build for your GPU."
        )
    if environment.gpus and not facts.accelerator:
        return (
            f"The device is the CPU although a GPU is present ({environment.gpus[0].name}): torch cannot see it. "
            "Look at the driver and at CUDA_VISIBLE_DEVICES."
        )
    if facts.accelerator:
        name = environment.gpus[0].name if environment.gpus else facts.accelerator
        return (
            f"The device is the CPU although a GPU is present ({name}): move the model and its batches there, "
            f'.to("{facts.accelerator}").'
        )
    return ""
