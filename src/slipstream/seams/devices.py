"""The accelerators that this process uses."""

from __future__ import annotations

import torch


def devices_in_use() -> list[torch.device]:
    """Returns the accelerators that hold memory of this process, and the current one. A script may put its model on a
    device that is not the current one. If the accelerator does not report its memory, only the current one is returned.
    This function initialises no device."""
    if not torch.accelerator.is_available():
        return []
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    module, current = torch.get_device_module(kind), torch.accelerator.current_device_index()
    if not hasattr(module, "memory_reserved"):
        return [torch.device(kind.type, current)]
    used = (i for i in range(torch.accelerator.device_count()) if i == current or module.memory_reserved(i) > 0)
    return [torch.device(kind.type, index) for index in used]


def synchronise_devices() -> None:
    """Waits until the devices of this process have done all their work."""
    for device in devices_in_use():
        torch.accelerator.synchronize(device)
