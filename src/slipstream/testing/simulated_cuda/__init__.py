"""A simulated CUDA on torch's CPU build, for tests of everything that calls a device.

`torch.cuda` and `device="cuda"` work as on a GPU: work is queued on streams and executed later, memory is limited and
ordered by streams, events are timed, generators, devices and forks are checked as CUDA checks them. Kernels are torch's
own CPU kernels. Triton, CUDA graphs, cuDNN and the fused LSTM are missing, and nothing is as fast as on a GPU.

    python -m slipstream.testing.simulated_cuda train.py
    python -m slipstream.testing.simulated_cuda --memory-mb 512 -m pytest tests/device
"""

from slipstream.testing.simulated_cuda.build import BuildError, build
from slipstream.testing.simulated_cuda.settings import Settings, environment

__all__ = ["BuildError", "Settings", "build", "environment"]
