import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from slipstream.observe.anatomy import Probe
from slipstream.observe.anatomy.denormals import SAMPLE_SIZE, share_of_denormals, take_sample


def test_denormals_are_counted() -> None:
    values = torch.tensor([0.0, 1.0, 1e-40, -1e-42])
    assert share_of_denormals([values]) == 0.5
    assert share_of_denormals([values.double()]) == 0.0
    assert share_of_denormals([]) is None


def test_samples_are_small_copies() -> None:
    tensor = torch.randn(100, 1000, requires_grad=True) * 1
    sample = take_sample(tensor)
    assert sample is not None and 0 < sample.numel() <= SAMPLE_SIZE and not sample.requires_grad
    assert sample.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
    spread = take_sample(torch.randn(8, 64, 32, 32).to(memory_format=torch.channels_last))
    assert spread is not None and spread.numel() <= SAMPLE_SIZE


def test_tensors_that_are_not_sampled() -> None:
    assert take_sample(torch.arange(4)) is None
    assert take_sample(torch.empty(0)) is None
    assert take_sample(torch.empty(4, device="meta")) is None
    assert take_sample(torch.eye(3).to_sparse()) is None
    assert take_sample("text") is None
    assert torch.func.vmap(lambda x: x if take_sample(x) is None else -x)(torch.ones(3)).tolist() == [1, 1, 1]

    class Counting(TorchDispatchMode):
        num_calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.num_calls += 1
            return func(*args, **(kwargs or {}))

    tensor = torch.ones(3)
    with Counting() as mode:
        assert take_sample(tensor) is None
    assert mode.num_calls == 0


def test_activations_of_a_step_are_sampled() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Identity())
    nn.init.constant_(model[0].weight, 1e-41)
    nn.init.zeros_(model[0].bias)
    probe = Probe([model])
    probe.start()
    model(torch.ones(4, 8))
    anatomy = probe.stop()
    assert anatomy is not None and anatomy.denormal_share is not None and anatomy.denormal_share > 0.5
