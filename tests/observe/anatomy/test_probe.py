"""The probe on whole steps of real models."""

import copy
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from slipstream.observe.anatomy import Probe
from slipstream.observe.anatomy.hooks import MAX_CALLS
from slipstream.records import Anatomy


@pytest.fixture(scope="module", autouse=True)
def dynamo_is_awake() -> None:
    """Compiles once before the tests, because torch permanently patches nn.Module at the first compilation."""
    from torch._dynamo.mutation_guard import install_generation_tagging_init

    install_generation_tagging_init()


class Convnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(16 * 16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.body(images).flatten(1)))


class Attention(nn.Module):
    def __init__(self, width: int = 32, num_heads: int = 2) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.mix = nn.Linear(width, 3 * width)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = self.mix(x).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) / 4.0
        weights = functional.softmax(scores, dim=-1)  # the line
        weights = self.drop(weights)
        return self.out((weights @ value).transpose(1, 2).reshape(batch, length, width))


def observe(models: list[nn.Module], step: Callable[[], Any]) -> Anatomy:
    probe = Probe(models)
    probe.start()
    try:
        step()
    finally:
        anatomy = probe.stop()
    assert anatomy is not None, probe.reason
    assert msgspec.json.decode(msgspec.json.encode(anatomy), type=Anatomy) == anatomy
    for model in models:
        for module in model.modules():
            assert not module._forward_hooks and not module._forward_pre_hooks
            assert not module._forward_hooks_always_called and not module._forward_pre_hooks_with_kwargs
    return anatomy


def train(model: nn.Module, inputs: torch.Tensor, **kwargs: Any) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_flops_of_a_linear_layer_in_double_precision() -> None:
    model = nn.Linear(12, 20).double()
    inputs = torch.ones(6, 12, dtype=torch.float64, requires_grad=True)
    anatomy = observe([model], train(model, inputs))
    forward = 2 * 6 * 12 * 20
    assert anatomy.flops == anatomy.classes_flops["contraction"] == 3 * forward
    (share,) = anatomy.modules
    assert (share.path, share.class_name, share.flops, share.backward_flops) == ("", "Linear", forward, 2 * forward)


def test_a_convnet_by_class_and_module() -> None:
    model = Convnet()
    anatomy = observe([model], train(model, torch.randn(4, 3, 8, 8)))
    convolution, linear = 2 * 4 * 8 * 8 * 16 * 3 * 3 * 3, 2 * 4 * 16 * 16 * 10
    # The images need no gradient, so the convolution computes one gradient and the linear layer two.
    assert anatomy.flops == 2 * convolution + 3 * linear
    by_path = {share.path: share for share in anatomy.modules}
    assert by_path["body.0"].flops == convolution == by_path["body.0"].backward_flops
    assert by_path["head"].backward_flops == 2 * linear
    assert "normalisation" in by_path["body.1"].classes_ms
    assert set(by_path["body.2"].classes_ms) <= {"elementwise", "other"}
    assert all(share.backward_ms > 0 for share in (by_path["body.0"], by_path["body.1"], by_path["body.2"]))
    assert {"contraction", "normalisation", "elementwise"} <= set(anatomy.classes_ms)
    assert sum(anatomy.classes_ms.values()) <= anatomy.step_ms
    assert anatomy.optimizer_operators > 0 and anatomy.optimizer_ms > 0
    assert anatomy.num_operators > 10
    assert anatomy.operators == sorted(anatomy.operators, key=lambda operator: -operator.self_cpu_ms)
    assert all(operator.total_cpu_ms >= operator.self_cpu_ms for operator in anatomy.operators)
    assert anatomy.attentions == [] and anatomy.padding_share is None and anatomy.denormal_share == 0.0


def test_denormal_inputs_count() -> None:
    """The step computes with denormal inputs even if no module's output is denormal."""
    model = nn.Sequential(nn.Linear(32, 8), nn.Linear(8, 37))
    anatomy = observe([model], train(model, torch.full((16, 32), 1e-39)))
    assert anatomy.denormal_share is not None and anatomy.denormal_share > 0.1


def test_manual_attention_and_its_line() -> None:
    model = nn.Sequential(nn.LayerNorm(32), Attention(), nn.Linear(32, 37))
    anatomy = observe([model], train(model, torch.randn(2, 16, 32)))
    (attention,) = anatomy.attentions
    assert attention.path == "1"
    assert attention.site is not None and attention.site.text.endswith("# the line")
    assert attention.site.file == __file__
    assert 0 < attention.share < 1
    (misalignment,) = anatomy.misalignments
    assert (misalignment.path, misalignment.dimension, misalignment.size) == ("2", "out_features", 37)
    assert misalignment.wanted == 40 and 0 < misalignment.share < 1


def test_an_lstm() -> None:
    model = nn.LSTM(8, 16, batch_first=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(4, 5, 8)

    def step() -> None:
        model(inputs)[0].square().mean().backward()
        optimizer.step()

    anatomy = observe([model], step)
    forward = 2 * 5 * 4 * (4 * 16 * 8 + 4 * 16 * 16)
    assert anatomy.modules[0].flops == forward
    assert anatomy.flops >= 2 * forward
    assert anatomy.classes_ms["contraction"] > 0


def test_flops_agree_with_torch() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Conv1d(4, 8, 3, stride=2, padding=1, dilation=2)
            self.back = nn.ConvTranspose1d(8, 6, 4, stride=2)
            self.mix = nn.Linear(6, 8, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.mix(self.back(self.one(x)).transpose(1, 2))
            return torch.einsum("btc,bsc->bts", y, y)

    model, inputs = Mixed(), torch.randn(2, 4, 20, requires_grad=True)
    counter = FlopCounterMode(display=False)
    with counter:
        model(inputs).sum().backward()
    assert observe([model], lambda: model(inputs).sum().backward()).flops == counter.get_total_flops()


def test_flops_that_torch_does_not_count() -> None:
    grouped, inputs = nn.Conv1d(4, 8, 3, groups=2), torch.randn(2, 4, 12, requires_grad=True)
    anatomy = observe([grouped], lambda: grouped(inputs).sum().backward())
    assert anatomy.flops == 3 * 2 * 2 * 10 * 8 * (4 // 2) * 3

    class Fused(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(x, x, x)

    fused, tokens = Fused(), torch.randn(2, 3, 16, 8, requires_grad=True)
    product = 2 * 2 * 3 * 16 * 16 * 8
    assert observe([fused], lambda: fused(tokens).sum().backward()).flops == (2 + 5) * product


def test_probed_training_is_bit_identical() -> None:
    def run(probed: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(Convnet(), nn.Unflatten(1, (5, 2)), nn.Linear(2, 32), Attention())
        step = train(model, torch.randn(4, 3, 8, 8))
        for index in range(4):
            if index == probed:
                observe([model], step)
            else:
                step()
        return list(model.state_dict().values()), torch.get_rng_state()

    (weights, state), (again, state_again) = run(-1), run(2)
    assert all(torch.equal(one, other) for one, other in zip(weights, again, strict=True))
    assert torch.equal(state, state_again)


def test_the_fast_path_of_an_encoder_stays_fast() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1).eval()
    inputs = torch.randn(2, 4, 16)
    with torch.inference_mode():
        anatomy = observe([model], lambda: model(inputs))
    assert any("_transformer_encoder_layer_fwd" in operator.name for operator in anatomy.operators)


def test_hooks_are_removed_when_the_step_raises() -> None:
    class Fragile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.is_broken = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(x)
            if self.is_broken:
                raise KeyboardInterrupt
            return y

    model = Fragile()
    with pytest.raises(KeyboardInterrupt):
        observe([model], lambda: model(torch.ones(2, 4)))
    assert not model._forward_hooks and not model.inner._forward_hooks
    model.is_broken = False
    assert observe([model], lambda: model(torch.ones(2, 4))).flops == 2 * 2 * 4 * 4


def test_lbfgs_closures_are_not_the_optimizer() -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, line_search_fn=None, tolerance_grad=0)
    inputs = torch.randn(16, 8)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(inputs) - 1).pow(4).sum()
        loss.backward()
        return loss

    anatomy = observe([model], lambda: optimizer.step(closure))
    assert anatomy.flops > 2 * 2 * 16 * 8 * 8  # more than one forward and backward
    assert 0 < anatomy.optimizer_ms < anatomy.step_ms
    assert anatomy.modules[0].backward_flops > 0


def test_a_gan() -> None:
    generator, critic = nn.Linear(4, 8), nn.Linear(8, 1)
    optimizers = [torch.optim.Adam(model.parameters()) for model in (generator, critic)]

    def step() -> None:
        fake = generator(torch.randn(4, 4))
        critic(fake.detach()).mean().backward()
        optimizers[1].step()
        fake = fake.requires_grad_()
        slope = torch.autograd.grad(critic(fake).sum(), fake, create_graph=True)[0]
        (slope.square().sum() - critic(fake).mean()).backward()
        optimizers[0].step()

    anatomy = observe([generator, critic], step)
    assert {share.path for share in anatomy.modules} == {"Linear[0]", "Linear[1]"}


def test_inference_alone() -> None:
    model = Convnet().eval()
    with torch.no_grad():
        anatomy = observe([model], lambda: model(torch.randn(2, 3, 8, 8)))
    assert anatomy.optimizer_ms == 0 and anatomy.optimizer_operators == 0


def test_work_of_the_loader_is_left_out() -> None:
    model = nn.Linear(4, 4)

    class Heavy(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            return (torch.ones(4, 4) @ torch.ones(4, 4))[0]

    loader = iter(DataLoader(Heavy(torch.ones(8, 4)), batch_size=2))
    anatomy = observe([model], lambda: model(next(loader)))
    assert anatomy.flops == 2 * 2 * 4 * 4


def test_probe_gives_way_to_the_profiler_of_the_script() -> None:
    model = nn.Linear(4, 4)
    with torch.profiler.profile() as profile:
        probe = Probe([model])
        probe.start()
        model(torch.ones(2, 4))
        assert probe.stop() is None
    assert "profiler" in probe.reason
    assert any(event.key == "aten::addmm" for event in profile.key_averages())
    # If the script starts a profiler during the step, the probe ends.
    probe = Probe([model])
    probe.start()
    with torch.profiler.profile() as profile:
        model(torch.ones(2, 4))
    assert probe.stop() is None and "during the step" in probe.reason
    assert any(event.key == "aten::addmm" for event in profile.key_averages())
    assert not model._forward_hooks
    # A profiler that waits for its turn in a schedule is already prepared.
    schedule = torch.profiler.schedule(wait=0, warmup=2, active=1)
    with torch.profiler.profile(schedule=schedule) as waiting:
        probe = Probe([model])
        probe.start()
        assert probe.stop() is None and probe.reason
        waiting.step()
    assert observe([model], lambda: model(torch.ones(2, 4))).flops == 64


def test_a_compiled_callable_is_left_alone() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    inner = Convnet().eval()
    model = nn.Sequential(torch.compile(inner, backend=backend, fullgraph=True), nn.Linear(10, 4))
    inputs = torch.randn(2, 3, 8, 8)
    model(inputs)
    anatomy = observe([model], lambda: model(inputs))
    assert {share.path for share in anatomy.modules} == {"", "1"}
    whole = copy.deepcopy(inner)
    whole.compile(backend=backend, fullgraph=True)
    whole(inputs)
    observe([whole], lambda: whole(inputs))
    step = torch.compile(lambda x: inner(x).sum(), backend=backend, fullgraph=True)
    step(inputs)
    compiled = len(graphs)
    observe([inner], lambda: step(inputs))
    step(inputs)
    assert len(graphs) == compiled
    torch._dynamo.reset()


def test_step_with_too_many_module_calls_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.observe.anatomy.hooks.MAX_CALLS", 20)
    model = nn.Sequential(nn.Identity())
    probe = Probe([model])
    probe.start()
    for _ in range(30):
        model(torch.ones(1))
    assert not model._forward_hooks
    assert probe.stop() is None and "more modules" in probe.reason
    assert MAX_CALLS > 20


def test_an_empty_step_and_a_probe_that_never_started() -> None:
    probe = Probe([nn.Linear(2, 2)])
    probe.start()
    assert probe.stop() is None and "no operators" in probe.reason
    assert Probe([nn.Linear(2, 2)]).stop() is None


def test_probe_prints_nothing_and_leaves_the_environment_unchanged() -> None:
    code = (
        "import torch, os; from slipstream.observe.anatomy import Probe; model = torch.nn.Linear(4, 4); "
        "probe = Probe([model]); probe.start(); model(torch.ones(2, 4)); assert probe.stop().flops == 64; "
        "assert 'KINETO_LOG_LEVEL' not in os.environ"
    )
    environment = {name: value for name, value in os.environ.items() if name != "KINETO_LOG_LEVEL"}
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


def test_references_to_tensors_are_dropped() -> None:
    model = nn.Linear(4, 4)
    probe = Probe([model])
    probe.start()
    outputs = model(torch.ones(2, 4))
    probe.stop()
    gc.collect()
    holders = [thing for thing in gc.get_referrers(outputs) if type(thing).__module__.startswith("slipstream")]
    assert not holders and probe._models == [] and probe._entries == []


@pytest.mark.parametrize("log", [torch.Tensor.item, lambda loss: torch.stack([loss, loss]).mean()])
def test_interrupted_step_without_a_model_call_has_no_anatomy(log: Callable[[torch.Tensor], Any]) -> None:
    loss = torch.ones(1)
    probe = Probe([nn.Linear(2, 2)])
    probe.start()
    log(loss)  # the script logs this before the workers of the next epoch start, which ends the probe
    assert probe.stop(is_whole=False) is None
    assert "before the model was called" in probe.reason
