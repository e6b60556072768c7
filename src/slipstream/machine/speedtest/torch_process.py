"""The part of the speed test that needs torch, in a process of its own: matrix multiplication in every precision,
copies to the device, and the cost of a loader's worker. Every result is written as one line as soon as it is known."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from slipstream.records import Reading

SHAPE: Final = (3, 224, 224)  # shape of a float sample of the loader
BATCH: Final = 32
_LONG_S: Final = 0.02  # a multiplication of this duration can be timed precisely
_COPY_BYTES: Final = 128 << 20


class TorchProcessFacts(msgspec.Struct, frozen=True, tag=True):
    torch_version: str
    cpu_capability: str


class TorchProcessNote(msgspec.Struct, frozen=True, tag=True):
    text: str


class TorchProcessReport(msgspec.Struct, frozen=True, tag=True):
    reading: Reading


Line = TorchProcessFacts | TorchProcessNote | TorchProcessReport


def lines(seconds: float) -> Iterator[Line]:
    """Yields the results of all parts. A part that fails yields a note, and the others still run."""
    start = time.perf_counter()
    import torch

    yield TorchProcessReport(Reading("import_torch", (time.perf_counter() - start) * 1000, "ms"))
    yield TorchProcessFacts(str(torch.__version__), torch.backends.cpu.get_cpu_capability())
    devices = ["cpu", *([device] if (device := accelerator()) else [])]
    for device in devices:
        for name, dtype in precisions(device):
            yield from _guarded(f"Multiplying in {name} on {device}", partial(multiply, name, dtype, device, seconds))
    for device in devices[1:]:
        for pinned in (False, True):
            yield from _guarded(f"Copying to {device}", partial(copy_to, device, pinned, seconds))
    yield from _guarded("Starting a loader's worker", worker_start)
    yield from _guarded("Handing over from a loader's worker", partial(hand_over, seconds))


def _guarded(what: str, measure: Callable[[], Reading]) -> Iterator[Line]:
    try:
        yield TorchProcessReport(measure())
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        yield TorchProcessNote(f"{what} was not measured: {type(error).__name__}: {reason}"[:300])


def accelerator() -> str:
    """Returns "cuda", "xpu" or "mps", or "" if there is no accelerator."""
    import torch

    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found.type if found is not None else ""


def precisions(device: str) -> list[tuple[str, Any]]:
    import torch

    listed = [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
    return [*listed, ("tf32", torch.float32)] if device == "cuda" else listed


def multiply(name: str, dtype: Any, device: str, seconds: float) -> Reading:
    """Multiplies two square matrices that are large enough to be timed precisely."""
    import torch

    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    wait = waiter(device)
    side, largest = 128, 2048 if device == "cpu" else 8192
    while True:
        left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        timed = _timer(partial(torch.matmul, left, right), wait)
        timed()  # the first call selects and loads its kernel
        once_s = timed()
        if once_s > _LONG_S or side >= largest:
            break
        side *= 2
    times, end = [once_s], time.perf_counter() + seconds
    while time.perf_counter() < end:
        times.append(timed())
    rate = 2 * side**3 / statistics.median(times) / 1e9
    return Reading(f"multiply_{name}", rate, "GFLOP/s", device, f"{side} x {side}")


def copy_to(device: str, pinned: bool, seconds: float, num_bytes: int = _COPY_BYTES) -> Reading:
    import torch

    source = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned)
    target = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    timed = _timer(lambda: target.copy_(source), waiter(device))
    timed()
    times, end = [timed()], time.perf_counter() + seconds
    while time.perf_counter() < end:
        times.append(timed())
    name = "copy_pinned" if pinned else "copy_pageable"
    return Reading(
        name, num_bytes / statistics.median(times) / 1e9, "GB/s", device, f"{num_bytes >> 20} MB to the device"
    )


def waiter(device: str) -> Callable[[], None]:
    """Returns a function that waits until the device has finished its work."""
    import torch

    if device == "cpu":
        return lambda: None
    wait: Callable[[], None] = getattr(torch, device.partition(":")[0]).synchronize
    return wait


def _timer(work: Callable[[], Any], wait: Callable[[], None]) -> Callable[[], float]:
    def timed() -> float:
        start = time.perf_counter()
        work()
        wait()
        return time.perf_counter() - start

    return timed


class TimedSamples:
    """A dataset that returns one sample again and again, so that only collating and handing over take time."""

    def __init__(self, length: int, shape: tuple[int, ...]) -> None:
        import torch

        self.length = length
        self.sample = torch.zeros(shape)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.sample


def worker_start(num_starts: int = 3) -> Reading:
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(TimedSamples(1, (1,)), num_workers=1)  # type: ignore[arg-type]
    times = []
    for _ in range(num_starts):
        start = time.perf_counter()
        next(iter(loader))
        times.append(time.perf_counter() - start)
    return Reading("worker_start", statistics.median(times) * 1000, "ms", detail="until the first batch arrives")


def hand_over(seconds: float, shape: tuple[int, ...] = SHAPE) -> Reading:
    """Measures how fast one worker collates batches and passes them through shared memory."""
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(TimedSamples(1 << 30, shape), batch_size=BATCH, num_workers=1)  # type: ignore[arg-type]
    batches = iter(loader)
    num_bytes = next(batches).nbytes
    for _ in range(3):  # skip the batches that were prefetched during the start
        next(batches)
    number, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds or not number:
        next(batches)
        number += 1
    detail = f"one worker, batches of {num_bytes / 1e6:.0f} MB"
    return Reading("hand_over", number * num_bytes / spent / 1e6, "MB/s", detail=detail)


def main() -> None:
    for line in lines(float(sys.argv[1])):
        sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
