"""Traces of devices that this machine may not have, from generated events."""

from types import SimpleNamespace
from typing import Any

from torch import nn

from slipstream.observe.anatomy.dissection import dissect
from slipstream.observe.anatomy.modules import list_modules
from slipstream.observe.anatomy.trace import build_trace


class MadeEvent:
    def __init__(self, name: str, start: int, end: int, ident: int, device: str = "CPU", **facts: Any) -> None:
        self._facts = {"thread": 1, "sequence": -1, "forward_thread": 0, "launcher": 0, "shapes": [], **facts}
        self._name, self._start, self._end, self._ident, self._device = name, start, end, ident, device

    def name(self) -> str:
        return self._name

    def start_ns(self) -> int:
        return self._start

    def duration_ns(self) -> int:
        return self._end - self._start

    def correlation_id(self) -> int:
        return self._ident

    def linked_correlation_id(self) -> int:
        return int(self._facts["launcher"])

    def device_type(self) -> Any:
        return SimpleNamespace(name=self._device)

    def start_thread_id(self) -> int:
        return int(self._facts["thread"])

    def fwd_thread_id(self) -> int:
        return int(self._facts["forward_thread"])

    def sequence_nr(self) -> int:
        return int(self._facts["sequence"])

    def is_async(self) -> bool:
        return False

    def is_user_annotation(self) -> bool:
        return bool(self._facts.get("annotation"))

    def shapes(self) -> list[list[int]]:
        shapes: list[list[int]] = self._facts["shapes"]
        return shapes

    def concrete_inputs(self) -> list[Any]:
        return [None] * len(self._facts["shapes"])


def gpu_step() -> list[MadeEvent]:
    """A linear layer forward in thread 1 and backward in autograd's thread 2, with kernels that run later."""
    evaluate = "autograd::engine::evaluate_function: MmBackward0"
    return [
        MadeEvent("slipstream::module::0", 0, 1000, 1),
        MadeEvent("aten::linear", 100, 900, 2, sequence=7),
        MadeEvent("aten::mm", 200, 800, 3, sequence=7, shapes=[[4, 8], [8, 16]]),
        MadeEvent("cudaLaunchKernel", 300, 400, 4, launcher=3),
        MadeEvent("gemm", 5000, 9000, 5, device="CUDA", launcher=3),
        MadeEvent("slipstream::module::0", 5000, 9000, 6, device="CUDA", launcher=1, annotation=True),
        MadeEvent("slipstream::own", 910, 950, 7),
        MadeEvent("aten::clone", 920, 940, 8),
        MadeEvent(evaluate, 2000, 3000, 9, thread=2, sequence=7, forward_thread=1),
        MadeEvent("aten::mm", 2100, 2900, 10, thread=2, shapes=[[8, 4], [4, 16]]),
        MadeEvent("gemm", 9000, 12_000, 11, device="CUDA", launcher=10),
        MadeEvent("Optimizer.step#SGD.step", 4000, 6000, 12, annotation=True),
        MadeEvent("aten::_foreach_add_", 4100, 4300, 13),
        MadeEvent("add", 12_000, 12_500, 14, device="CUDA", launcher=13),
    ]


def test_device_time_goes_to_the_operator_that_launched_it() -> None:
    anatomy = dissect(build_trace(gpu_step()), list_modules([nn.Linear(8, 16)]), step_ms=1.0)
    mm = anatomy.operators[0]
    assert (mm.name, mm.count, mm.self_device_ms, mm.total_device_ms) == ("aten::mm", 2, 0.007, 0.007)
    assert anatomy.classes_ms["contraction"] == 0.007
    assert anatomy.num_operators == 2
    assert (anatomy.optimizer_ms, anatomy.optimizer_operators) == (0.0005, 1)
    linear = next(operator for operator in anatomy.operators if operator.name == "aten::linear")
    assert (linear.self_device_ms, linear.total_device_ms) == (0.0, 0.004)
    assert linear.self_cpu_ms == 0.0002
    assert not any(operator.name == "aten::clone" for operator in anatomy.operators)


def test_the_backward_finds_its_module_across_threads() -> None:
    anatomy = dissect(build_trace(gpu_step()), list_modules([nn.Linear(8, 16)]), step_ms=1.0)
    (share,) = anatomy.modules
    assert (share.forward_ms, share.backward_ms) == (0.004, 0.003)
    assert (share.flops, share.backward_flops) == (2 * 4 * 8 * 16, 2 * 8 * 4 * 16)


def test_a_host_step_counts_the_module_s_own_python() -> None:
    events = [event for event in gpu_step() if event.device_type().name == "CPU" and not event.linked_correlation_id()]
    anatomy = dissect(build_trace(events), list_modules([nn.Linear(8, 16)]), step_ms=1.0)
    assert anatomy.modules[0].forward_ms == (1000 - 40) / 1e6  # the range without our own work
    assert anatomy.optimizer_ms == 0.002
    assert anatomy.classes_ms["contraction"] == (800 + 800) / 1e6
