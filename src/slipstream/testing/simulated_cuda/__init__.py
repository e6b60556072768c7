"""A simulated CUDA on torch's CPU build, for tests of everything that calls a device.

`torch.cuda` and `device="cuda"` work as on a GPU. Work is queued on streams and executed later. Memory is limited and
ordered by streams. Events are timed. Generators, devices and forks are checked as CUDA checks them. Kernels are torch's
own CPU kernels, so they are slower than on a GPU. Triton, CUDA graphs, cuDNN and the fused LSTM are missing.

    python -m slipstream.testing.simulated_cuda train.py
    python -m slipstream.testing.simulated_cuda --memory-mb 512 -m pytest tests/device
"""

from slipstream.testing.simulated_cuda.build import BuildError, build
from slipstream.testing.simulated_cuda.settings import Settings, environment

__all__ = ["BuildError", "Settings", "build", "environment"]
