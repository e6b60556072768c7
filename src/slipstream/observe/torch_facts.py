"""Facts about torch that only the script's process knows: build, threads, hardware units, switches. They can be read
once torch is imported. This module never initialises a device, because forked workers could not use the device then."""

from __future__ import annotations

from typing import Any

import torch

from slipstream.records import TorchFacts

AMPERE = (8, 0)  # the first compute capability with fast bfloat16 and TF32
VOLTA = (7, 0)  # the first compute capability with tensor cores for half precision


def read_torch_facts(device: str = "") -> TorchFacts:
    """Reads the facts. `device` is the model's device: "cpu", "cuda:0", or "" if it is not known yet."""
    accelerator = _read_accelerator()
    kind = device.partition(":")[0] or (accelerator if _is_initialised(accelerator) else "cpu")
    bf16, fp16, tf32 = _read_units(kind, device)
    device_name, device_bytes = _read_cuda_device(kind, device)
    return TorchFacts(
        version=str(torch.__version__),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        num_threads=torch.get_num_threads(),
        num_interop_threads=torch.get_num_interop_threads(),
        accelerator=accelerator,
        accelerator_build=str(torch.version.cuda or torch.version.hip or getattr(torch.version, "xpu", None) or ""),
        device=device or "cpu",
        has_fast_bf16=bf16,
        has_fast_fp16=fp16,
        has_tf32=tf32,
        matmul_precision=_read_matmul_precision(),
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        deterministic=torch.are_deterministic_algorithms_enabled()
        or (kind == "cuda" and torch.backends.cudnn.deterministic),
        flush_denormal=_flushes_denormals(),
        device_name=device_name,
        device_bytes=device_bytes,
    )


def _read_accelerator() -> str:
    """Returns the type of the accelerator, or "". Whether a CUDA device exists is asked from NVML, which creates no
    context and does not affect forks. ROCm and other accelerators are asked through torch."""
    try:
        found = torch.accelerator.current_accelerator()
        if found is None:
            return ""
        if found.type == "cuda":
            return "cuda" if _count_cuda() > 0 else ""
        return found.type if torch.accelerator.is_available() else ""
    except Exception:
        return ""


def _count_cuda() -> int:
    if _is_initialised("cuda"):
        return torch.cuda.device_count()
    # device_count() may call the CUDA runtime if NVML does not answer, and that breaks later forks.
    count: int = torch.cuda._device_count_nvml() if not torch.version.hip else torch.cuda.device_count()
    return max(count, 0)


def _is_initialised(accelerator: str) -> bool:
    if accelerator == "mps":
        return True
    module: Any = getattr(torch, accelerator, None) if accelerator else None
    return bool(module is not None and hasattr(module, "is_initialized") and module.is_initialized())


def _read_units(kind: str, device: str) -> tuple[bool, bool, bool]:
    """Returns whether bfloat16, half and TF32 run on dedicated hardware units."""
    if kind == "cuda":
        return _read_cuda_units(device)
    if kind == "mps":
        return False, True, False
    if kind == "xpu":
        return True, True, True
    return (
        _has_cpu_unit("_is_avx512_bf16_supported", "_is_amx_tile_supported", names=("amx_bf16", "bf16")),
        False,
        False,
    )


def _read_cuda_units(device: str) -> tuple[bool, bool, bool]:
    if not _is_initialised("cuda"):
        return False, False, False
    if torch.version.hip:
        architecture = getattr(torch.cuda.get_device_properties(device or "cuda"), "gcnArchName", "")
        matrix = architecture.startswith(("gfx908", "gfx90a", "gfx94", "gfx95", "gfx11", "gfx12"))
        return matrix, matrix, architecture.startswith("gfx94")
    capability = torch.cuda.get_device_capability(device or None)
    return capability >= AMPERE, capability >= VOLTA, capability >= AMPERE


def _read_cuda_device(kind: str, device: str) -> tuple[str, int]:
    """Returns the name and the memory of a CUDA device that the script has initialised, or "" and 0 for any other
    device."""
    if kind != "cuda" or not device or not _is_initialised("cuda"):
        return "", 0
    properties = torch.cuda.get_device_properties(device)
    return properties.name, properties.total_memory


def _has_cpu_unit(*questions: str, names: tuple[str, ...]) -> bool:
    """Whether the CPU has a unit. torch's functions for this are private and differ between releases, so each is called
    only where it exists."""
    for question in questions:
        ask: Any = getattr(torch.cpu, question, None)
        if ask is not None and ask():
            return True
    read: Any = getattr(torch.cpu, "get_capabilities", None)
    known = read() if read is not None else {}
    return any(bool(known.get(name)) for name in names)


def _read_matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # newer releases raise if a script sets the precision through both the old and the new API
        return "mixed"


def _flushes_denormals() -> bool:
    """Whether the calling thread flushes denormals. Half of the smallest normal number is a denormal number. If the
    thread flushes denormals, the result is zero."""
    # The device is given because the script may have set another default device.
    smallest = torch.tensor(torch.finfo(torch.float32).tiny, dtype=torch.float32, device="cpu")
    return bool((smallest / 2).item() == 0.0)
