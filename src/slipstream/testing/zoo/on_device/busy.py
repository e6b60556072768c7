"""Work of a fixed length on the device, for the scripts beside this file."""

import torch


def compute(ms):
    """Keeps the device busy and returns at once."""
    cycles_per_ms = torch.cuda.get_device_properties(torch.cuda.current_device()).clock_rate
    torch.cuda._sleep(int(ms * cycles_per_ms))


class Busy(torch.autograd.Function):
    @staticmethod
    def forward(context, values, forward_ms, backward_ms):
        context.ms = backward_ms
        compute(forward_ms)
        return values.clone()

    @staticmethod
    def backward(context, grad):
        compute(context.ms)
        return grad, None, None


class BusyLayer(torch.nn.Module):
    """Takes this long in the forward and in the backward pass."""

    def __init__(self, forward_ms, backward_ms):
        super().__init__()
        self.times = forward_ms, backward_ms

    def forward(self, values):
        return Busy.apply(values, *self.times)
