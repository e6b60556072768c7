"""These tests run in a process of their own, in which torch has simulated CUDA devices: `make test-device`."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch  # loads the device, where the environment says so

from slipstream.testing.simulated_cuda.install import is_installed

_REASON = "torch has no simulated CUDA in this process; `make test-device` runs these tests"


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    """Nothing is under way on the devices, before and after a test, and no test sees another one's memory."""
    if not is_installed():
        pytest.skip(_REASON)
    gc.collect()
    for index in range(torch.cuda.device_count()):
        torch.cuda.synchronize(index)
        torch.cuda.reset_peak_memory_stats(index)
    torch.cuda.empty_cache()
    torch.cuda.set_device(0)
    yield
    for index in range(torch.cuda.device_count()):
        torch.cuda.synchronize(index)
