"""The simulated device is as strict as CUDA: what is wrong on a GPU goes wrong on it."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import textwrap
import time
from typing import Any

import pytest
import torch
from torch import nn

from slipstream.testing.simulated_cuda.install import library

_MS = 1_000_000  # cycles of torch.cuda._sleep


def _train(device: str, steps: int = 15) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 16)),
        *(nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 10)),
    )
    images, labels = torch.randn(8, 3, 8, 8), torch.randint(0, 10, (8,))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def test_trains_to_the_losses_of_the_cpu() -> None:
    assert _train("cuda") == pytest.approx(_train("cpu"), rel=1e-4)


def test_attention_and_mixed_precision_train() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")
    tokens = torch.randn(4, 6, 32, device="cuda")
    losses = []
    for _ in range(8):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(tokens).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] != losses[0]
    assert all(value == value for value in losses)


def test_the_host_runs_ahead() -> None:
    torch.cuda._sleep(50 * _MS)
    torch.ones(8, device="cuda").add_(1)
    assert library().num_pending() > 0
    torch.cuda.synchronize()
    assert library().num_pending() == 0


def test_events_measure_the_device() -> None:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(20 * _MS)
    end.record()
    assert not end.query()
    with pytest.raises(RuntimeError, match="device not ready"):
        start.elapsed_time(end)
    end.synchronize()
    assert start.elapsed_time(end) >= 20


# --- planted faults --------------------------------------------------------------------------------------------------


def _copy_on_a_side_stream(records: bool) -> Any:
    """What a prefetcher does: a batch is copied on a stream of its own, and used and dropped on the current one."""
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    source = torch.arange(1000.0).pin_memory()
    with torch.cuda.stream(side):
        batch = source.to("cuda", non_blocking=True)
    current.wait_stream(side)
    if records:
        batch.record_stream(current)
    torch.cuda._sleep(20 * _MS)  # the batch is used later than the host drops it
    result = batch * 2
    del batch
    with torch.cuda.stream(side):
        torch.zeros(1000, device="cuda")
    return result.cpu()


def test_a_missing_record_stream_spoils_the_numbers() -> None:
    expected = torch.arange(1000.0) * 2
    assert torch.equal(_copy_on_a_side_stream(records=True), expected)
    assert not torch.equal(_copy_on_a_side_stream(records=False), expected)


def test_a_non_blocking_copy_that_is_read_too_early_has_other_numbers() -> None:
    torch.cuda._sleep(20 * _MS)
    values = torch.ones(1000, device="cuda").to("cpu", non_blocking=True)
    assert values.is_pinned()
    early = values.clone()
    torch.cuda.synchronize()
    assert not torch.equal(early, torch.ones(1000))
    assert torch.equal(values, torch.ones(1000))


def test_a_pinned_source_that_is_overwritten_too_early_spoils_the_copy() -> None:
    source = torch.ones(1000).pin_memory()
    torch.cuda._sleep(20 * _MS)
    copied = source.to("cuda", non_blocking=True)
    source.zero_()
    assert copied.sum().item() == 0


def test_pageable_memory_is_read_before_the_call_returns() -> None:
    source = torch.ones(1000)
    torch.cuda._sleep(20 * _MS)
    copied = source.to("cuda", non_blocking=True)
    source.zero_()
    assert copied.sum().item() == 1000


def _produce_on_a_side_stream(waits: bool) -> float:
    side = torch.cuda.Stream()
    values = torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20 * _MS)
        values.add_(1)
    if waits:
        torch.cuda.current_stream().wait_stream(side)
    total = values.sum().item()
    torch.cuda.synchronize()
    return float(total)


def test_a_missing_wait_between_streams_has_other_numbers() -> None:
    assert _produce_on_a_side_stream(waits=True) == 1000
    assert _produce_on_a_side_stream(waits=False) == 0


def test_a_clock_without_synchronisation_sees_the_host_only() -> None:
    start = time.perf_counter()
    torch.cuda._sleep(200 * _MS)
    launched_s = time.perf_counter() - start
    torch.cuda.synchronize()
    assert launched_s < time.perf_counter() - start
    assert time.perf_counter() - start >= 0.2


def test_memory_that_is_kept_is_counted_until_none_is_left() -> None:
    _, total = torch.cuda.mem_get_info()
    before = torch.cuda.memory_allocated()  # constants that other tests have left in caches
    kept: list[Any] = []
    with pytest.raises(torch.OutOfMemoryError, match=r"CUDA out of memory\. Tried to allocate 64\.00 MiB"):
        for _ in range(1 + (total >> 26)):
            kept.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
    assert torch.cuda.memory_allocated() == before + (len(kept) << 26)
    reserved = torch.cuda.memory_reserved()
    num_kept = len(kept)
    kept.clear()
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.memory_reserved() == reserved
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == reserved - (num_kept << 26)


# --- memory ----------------------------------------------------------------------------------------------------------


def test_a_fraction_limits_the_memory() -> None:
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(0.25)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(total // 2, dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_the_history_explains_the_peak() -> None:
    torch.cuda.memory._record_memory_history(context=None)
    try:
        before, live, peak = torch.cuda.memory_allocated(), 0, 0
        torch.cuda.reset_peak_memory_stats()
        _train("cuda", steps=2)
        for entry in torch.cuda.memory._snapshot()["device_traces"][0]:
            size = -(-entry["size"] // 512) * 512
            live += {"alloc": size, "free_requested": -size}.get(entry["action"], 0)
            peak = max(peak, live)
        assert before + peak == pytest.approx(torch.cuda.max_memory_allocated(), rel=0.01)
    finally:
        torch.cuda.memory._record_memory_history(None)


def test_the_segments_add_up() -> None:
    kept = [torch.empty(n, device="cuda") for n in (10, 5000, 300_000, 4_000_000)]
    del kept[1]
    segments = torch.cuda.memory._snapshot()["segments"]
    assert sum(segment["total_size"] for segment in segments) == torch.cuda.memory_reserved()
    assert sum(segment["allocated_size"] for segment in segments) == torch.cuda.memory_allocated()


def test_processes_share_the_memory() -> None:
    free, _ = torch.cuda.mem_get_info()
    code = "import torch; x = torch.empty(512 << 20, dtype=torch.uint8, device='cuda'); print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"1\n"
        assert free - torch.cuda.mem_get_info()[0] >= 512 << 20
        other.communicate(b"\n")
    assert torch.cuda.mem_get_info()[0] == free


# --- devices, generators, forks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["cuda:1", "cpu"])
def test_tensors_of_two_devices_are_refused(other: str) -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ones(3, device="cuda:0") + torch.ones(3, device=other)


def test_indices_and_numbers_of_the_host_are_accepted() -> None:
    values = torch.arange(5.0, device="cuda")
    assert values[torch.tensor([1, 3])].tolist() == [1, 3]
    assert (values * torch.tensor(2.0)).tolist() == [0, 2, 4, 6, 8]


def test_a_copy_between_devices_waits_for_both() -> None:
    source = torch.zeros(1000, device="cuda:0")
    torch.cuda._sleep(20 * _MS)
    source.add_(1)
    assert source.to("cuda:1").sum().item() == 1000


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(3, device="cuda:7")


def test_an_event_belongs_to_a_device() -> None:
    event = torch.cuda.Event()
    event.record()
    with torch.cuda.device(1), pytest.raises(RuntimeError, match="does not match"):
        event.record()


def test_generators_of_the_host_are_refused() -> None:
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.randn(3, device="cuda", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="Expected"):
        torch.randn(3, generator=torch.Generator("cuda"))


def test_seeds_and_states_repeat_the_numbers() -> None:
    torch.manual_seed(3)
    state = torch.cuda.get_rng_state()
    first = torch.randn(5, device="cuda").tolist()
    torch.cuda.set_rng_state(state)
    assert torch.randn(5, device="cuda").tolist() == first
    assert torch.randn(5, device="cuda").tolist() != first
    torch.manual_seed(3)
    assert torch.randn(5, device="cuda").tolist() == first


def test_a_forked_process_cannot_use_the_device() -> None:
    code = """
        import os, torch
        torch.ones(1, device="cuda")
        if os.fork() == 0:
            try:
                torch.ones(1, device="cuda")
            except RuntimeError as error:
                print(error, flush=True)
            os._exit(0)
        os.wait()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert "Cannot re-initialize CUDA in forked subprocess" in done.stdout


@pytest.mark.parametrize(("visible", "count"), [("1", 1), ("1,0", 2), ("", 0), ("0,5,1", 1)])
def test_cuda_visible_devices_is_obeyed(visible: str, count: int) -> None:
    code = "import torch; print(torch.cuda.device_count(), torch.cuda.is_available())"
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": visible}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == [str(count), str(count > 0)]


# --- the rest --------------------------------------------------------------------------------------------------------


def test_a_capture_is_lost_when_an_event_is_queried() -> None:
    event = torch.cuda.Event()
    event.record()
    library().begin_capture()
    assert torch.cuda.is_current_stream_capturing()
    torch.ones(3, device="cuda").add_(1)
    assert library().end_capture()
    library().begin_capture()
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        event.query()
    assert not library().end_capture()


def test_models_are_copied_and_saved(tmp_path: Any) -> None:
    model = nn.Linear(3, 3).cuda()
    assert copy.deepcopy(model).weight.is_cuda
    torch.save(model.state_dict(), tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt")
    assert loaded["weight"].is_cuda
    assert torch.equal(loaded["weight"], model.weight)


def test_the_profiler_sees_kernels() -> None:
    from torch.profiler import profile

    values = torch.ones(50, 50, device="cuda")
    with profile() as trace:
        values @ values
        torch.cuda.synchronize()
    kernels = [event for event in trace.events() if str(event.device_type).endswith("CUDA")]
    assert [event.name for event in kernels] == ["aten::mm"]
    assert kernels[0].device_index == 0
