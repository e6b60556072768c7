"""Makes the memory of a step the same on every machine.

Tiny tensors need one thread. oneDNN and NNPACK are switched off because they choose their kernels, and with them the
size of the scratch memory, by the instruction set of the processor and by the size of the batch. The kernels of torch
itself take the same memory everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def same_kernels_everywhere() -> Iterator[None]:
    num_threads, has_onednn = torch.get_num_threads(), torch._C._get_mkldnn_enabled()
    torch.set_num_threads(1)
    torch._C._set_mkldnn_enabled(False)  # `torch.backends.mkldnn.flags` warns about a setting of Intel's GPUs
    with torch.backends.nnpack.flags(enabled=False):
        yield
    torch._C._set_mkldnn_enabled(has_onednn)
    torch.set_num_threads(num_threads)
