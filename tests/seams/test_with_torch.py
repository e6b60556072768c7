"""Seams on real torch objects, with a recorder that keeps its messages in this process."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # patches torch when it is imported, so it is imported before our patches are checked
from torch.utils.data import DataLoader, TensorDataset

import slipstream
from slipstream.observe.recorder import Recorder
from slipstream.records import Ending, Event, Met, Seen
from slipstream.seams.modules.module import shield_from_dynamo
from slipstream.seams.patching import Patches
from slipstream.seams.transfer import SyncSeam, TransferSeam
from slipstream.trial.lifecycle import ScriptRun, TrialSettings
from slipstream.wire.spool import MemorySink


@contextmanager
def running() -> Iterator[ScriptRun]:
    run = ScriptRun(TrialSettings(mode="watch"))
    run.start()
    try:
        yield run
    finally:
        run.leave(Ending("finished", 0, 0.0))


def events_of(run: ScriptRun) -> list[Event]:
    return [event for _, message in run.messages if isinstance(message, Seen) for event in message.events]


def kinds(run: ScriptRun) -> Counter[str]:
    return Counter(event.kind for event in events_of(run) if event.kind != "aside")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.rest = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(self.first(x))


def train(net: torch.nn.Module, parameters: Iterator[torch.nn.Parameter], num: int) -> None:
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(num):
        optimizer.zero_grad()
        net(torch.randn(4, 8)).sum().backward()
        optimizer.step()


def test_only_the_outermost_module_is_seen_and_then_hooked_alone() -> None:
    net = Net()
    with running() as run:
        train(net, net.parameters(), 6)
        assert torch.nn.Module.__call__ is run._mode.modules._original
        assert "_compiled_call_impl" in vars(net) and "_compiled_call_impl" not in vars(net.first)
        control = pickle.loads(pickle.dumps(net))  # tensors pickle through torch.save
        assert vars(control).get("_compiled_call_impl") is None
        assert vars(copy.deepcopy(net)).get("_compiled_call_impl") is None
    assert vars(net).get("_compiled_call_impl") is None
    assert kinds(run) == {"forward": 6, "backward": 6, "optimizer": 6, "saving": 4}


@pytest.mark.parametrize("is_settled", [False, True])
def test_site_of_a_model_is_the_line_that_trains_it(is_settled: bool) -> None:
    """Lightning evaluates on validation data first. A script may also evaluate for many steps of another model."""
    net, other = Net(), Net()
    with running() as run:
        with torch.no_grad():
            net.eval()(torch.randn(2, 8))
        if is_settled:
            train(other, other.parameters(), 4)
        train(net.train(), net.parameters(), 4)
    met = [one.model for _, one in run.messages if isinstance(one, Met) and one.model is not None]
    first, *_, last = [model for model in met if model.ident == 0]
    assert first.site is not None and last.site is not None
    assert (first.site.text, last.site.text) == (
        "net.eval()(torch.randn(2, 8))",
        "net(torch.randn(4, 8)).sum().backward()",
    )
    assert last.inputs[0].shape == [4, 8]


@pytest.mark.parametrize("way", ["torch.compile", "module.compile", "late", "sequential"])
def test_seam_is_outside_compiled_modules(way: str) -> None:
    """fullgraph=True raises on any graph break, so a seam inside would be an error."""
    net: torch.nn.Module = Net()
    torch._dynamo.reset()
    with running() as run:
        if way == "late":
            train(net, net.parameters(), 3)
        parameters = net.parameters()
        if way == "module.compile":
            net.compile(backend="eager", fullgraph=True)
        elif way == "sequential":
            net = torch.compile(net.rest, backend="eager", fullgraph=True)  # type: ignore[assignment]
        else:
            net = torch.compile(net, backend="eager", fullgraph=True)  # type: ignore[assignment]
        train(net, parameters, 5)
    num = 8 if way == "late" else 5
    assert kinds(run) == {"forward": num, "backward": num, "optimizer": num}


def test_dynamo_skips_files_that_exist() -> None:
    import torch._dynamo.trace_rules as rules

    package = Path(slipstream.__file__).parent
    shield_from_dynamo(test_dynamo_skips_files_that_exist.__code__)
    ours = [Path(one) for one in rules.SKIP_DIRS if Path(one).is_relative_to(package) and one.endswith(".py")]
    assert ours and all(one.is_file() for one in ours)


def test_a_compiled_function_has_no_seam_inside() -> None:
    net = Net()
    torch._dynamo.reset()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with running() as run:
        train(net, net.parameters(), 3)

        @torch.compile(backend="eager", fullgraph=True)
        def loss_of(x: torch.Tensor) -> torch.Tensor:
            return net(x).sum()

        for _ in range(3):
            loss_of(torch.randn(4, 8)).backward()
            optimizer.step()
    assert kinds(run)["backward"] == 6
    assert kinds(run)["forward"] == 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_seen_with_their_samples_and_the_line_of_the_loader(num_workers: int) -> None:
    with running() as run:
        loader = DataLoader(TensorDataset(torch.randn(20, 3)), batch_size=8, num_workers=num_workers)
        for _ in range(2):
            for _ in loader:
                pass
    inputs = [event for event in events_of(run) if event.kind == "input"]
    assert [event.samples for event in inputs] == [8, 8, 4] * 2
    assert kinds(run)["iterator"] == 2
    loaders = [message.loader for _, message in run.messages if isinstance(message, Met) and message.loader]
    assert loaders[-1].site is not None and "loader = DataLoader(" in loaders[-1].site.text
    assert loaders[-1].tensor_facts[0].shape == [8, 3]


class OwnDescent(torch.optim.Optimizer):
    def __init__(self, parameters: Iterator[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(0.1 * parameter.grad)


def test_site_of_a_user_defined_optimizer_is_where_the_script_makes_it() -> None:
    net = Net()
    with running() as run:
        optimizer = OwnDescent(net.parameters())
        net(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    (seen,) = [one.optimizer for _, one in run.messages if isinstance(one, Met) and one.optimizer is not None]
    assert seen.site is not None and seen.site.text == "optimizer = OwnDescent(net.parameters())"
    assert seen.step_site is not None and seen.step_site.text.startswith("def step(self")
    with running() as run:
        train(net, net.parameters(), 1)
    (seen,) = [one.optimizer for _, one in run.messages if isinstance(one, Met) and one.optimizer is not None]
    assert seen.step_site is None


def test_closures_nest_inside_the_optimizer() -> None:
    net = Net()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(torch.ones(4, 8)).square().sum()
        loss.backward()
        return loss

    with running() as run:
        optimizer.step(closure)
    seen = events_of(run)
    (step,) = [event for event in seen if event.kind == "optimizer"]
    backwards = [event for event in seen if event.kind == "backward"]
    assert backwards and all(step.start_ns <= event.start_ns and event.end_ns <= step.end_ns for event in backwards)


def transfer_recorder() -> tuple[Recorder, MemorySink, Patches]:
    sink = MemorySink()

    def complain(seam: str, fault: BaseException) -> None:
        raise AssertionError(seam) from fault

    return Recorder(sink), sink, Patches(complain, lambda: False)


def test_copies_to_the_device_are_distinguished_from_other_uses_of_to() -> None:
    """The meta device represents an accelerator. A predicate decides which tensors are on the device."""
    recorder, sink, patches = transfer_recorder()
    TransferSeam(recorder, lambda tensor: tensor.device.type == "meta").install(patches)
    try:
        x = torch.zeros(4, 5)
        x.to(torch.float64)
        x.to("cpu")
        x.to("meta", non_blocking=True)
        x.to("meta")
        torch.nn.Linear(2, 2).to("meta")
    finally:
        patches.close()
    recorder.flush(is_last=True)
    events = [event for message in sink.messages if isinstance(message, Seen) for event in message.events]
    tensors = [event for event in events if event.num_bytes == 80]
    assert [event.blocking for event in tensors] == [False, True]
    assert {event.kind for event in events} == {"transfer"}


def test_floats_that_were_bytes_are_reported_if_there_is_a_device() -> None:
    """Two loaders, each with its own facts: images converted from bytes, and noise."""
    pictures = torch.randint(0, 256, (8, 3, 40, 40)).float() / 255
    noise = torch.randn(8, 3, 40, 40)
    with running() as run:
        loaders = [DataLoader(TensorDataset(data), batch_size=size) for data, size in ((pictures, 4), (noise, 2))]
        for loader in loaders:
            list(loader)
        run._mode.loader.look_for_bytes()  # called when a model is on a device
        for loader in loaders:
            list(loader)
    met = [message.loader for _, message in run.messages if isinstance(message, Met) and message.loader is not None]
    told = [(loader.ident, loader.tensor_facts[0].was_bytes) for loader in met if loader.tensor_facts]
    assert list(dict.fromkeys(told)) == [(0, False), (1, False), (0, True)]
    sizes = {(event.ident, event.num_bytes) for event in events_of(run) if event.kind == "input"}
    assert sizes == {(0, 4 * 4800 * 4), (1, 2 * 4800 * 4)}


def test_waits_for_the_device_are_seen_once_each() -> None:
    recorder, sink, patches = transfer_recorder()
    SyncSeam(recorder, lambda tensor: True).install(patches)
    try:
        x = torch.arange(6.0)
        x.sum().item()
        float(x[0])
        str(x)
    finally:
        patches.close()
    recorder.flush(is_last=True)
    events = [event for message in sink.messages if isinstance(message, Seen) for event in message.events]
    assert [event.kind for event in events] == ["sync"] * 3
    sites = [message.site for message in sink.messages if isinstance(message, Met) and message.site]
    assert [site.text for site in sites] == ["x.sum().item()", "float(x[0])", "str(x)"]


def test_transforms_that_are_modules_are_input_not_forward() -> None:
    scale = torch.nn.LayerNorm(3)

    class Scaled(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> torch.Tensor:
            return scale(torch.randn(3)).detach()

    net = torch.nn.Linear(3, 1)
    with running() as run:
        for batch in DataLoader(Scaled(), batch_size=2):
            net(batch).sum().backward()
    assert kinds(run)["forward"] == 4


def test_module_that_is_first_called_later_is_found() -> None:
    critic, generator = Net(), Net()
    critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
    generator_optimizer = torch.optim.SGD(generator.parameters(), lr=0.1)
    with running() as run:
        for step in range(30):
            critic(torch.randn(2, 8)).sum().backward()
            critic_optimizer.step()
            if step % 5 == 4:
                critic(generator(torch.randn(2, 8))).sum().backward()
                generator_optimizer.step()
    calls = Counter(event.ident for event in events_of(run) if event.kind == "forward")
    assert calls[0] == 36
    assert calls[1] >= 5  # the first call of a new module may be missed


def test_traced_module_is_not_observed() -> None:
    """Example: add_graph of tensorboard. Operations of ours on a tensor would become part of the traced graph, and the
    check of the trace would fail. Tested before and after the search has ended."""
    net = Net()
    with running() as run:
        first = torch.jit.trace(net, torch.randn(2, 8))
        train(net, net.parameters(), 6)
        second = torch.jit.trace(net.eval(), torch.randn(2, 8))
        assert not run.complaints
    bare = torch.jit.trace(net, torch.randn(2, 8))
    assert str(first.graph).count("\n") == str(second.graph).count("\n") == str(bare.graph).count("\n")
    assert kinds(run)["forward"] == 6 + 2  # the check of the trace calls the traced module


class Counted(torch.nn.Module):
    """Like a metric of torchmetrics: its hash depends on its state."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0.0

    def forward(self, values: torch.Tensor) -> float:
        self.total += float(values.sum())
        return self.total

    def __hash__(self) -> int:
        return hash((id(self), self.total))


def test_a_module_whose_hash_changes_is_one_module() -> None:
    net, metric = Net(), Counted()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with running() as run:
        for _ in range(6):
            optimizer.zero_grad()
            output = net(torch.randn(4, 8))
            metric(output.detach())
            output.sum().backward()
            optimizer.step()
        assert "_compiled_call_impl" in vars(net) and "_compiled_call_impl" in vars(metric)
    assert vars(metric).get("_compiled_call_impl") is None
    assert kinds(run) == {"forward": 12, "backward": 6, "optimizer": 6}
    models = [message.model for _, message in run.messages if isinstance(message, Met) and message.model is not None]
    assert [model.class_name for model in models].count("Counted") == 1


class Tries(Net):
    def __init__(self) -> None:
        super().__init__()
        self.width = self.rest(torch.zeros(1, 8)).shape[1]


def test_parts_that_a_model_calls_in_its_init_are_not_models() -> None:
    with running() as run:
        net = Tries()
        train(net, net.parameters(), 4)
        assert "_compiled_call_impl" in vars(net) and "_compiled_call_impl" not in vars(net.rest)
    assert kinds(run) == {"forward": 4, "backward": 4, "optimizer": 4}
