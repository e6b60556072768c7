"""Records the batches that a loader's worker builds, and the worker's private memory."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.observe.message_queue import MessageQueue
from slipstream.observe.worker_memory import PrivateGauge
from slipstream.records import Fetch
from slipstream.seams.host_clock import Clock


class FetchRecorder:
    """The recorder of one worker of one loader. `loader` is -1 in a spawned worker, which does not know its loader."""

    def __init__(self, queue: MessageQueue, clock: Clock, loader: int, worker: int) -> None:
        self._queue = queue
        self._clock = clock
        self._loader = loader
        self._worker = worker
        self._gauge = PrivateGauge(queue, clock)
        self.has_fetched = False  # whether the worker has finished its start-up: imports, worker_init_fn

    def begin_fetch(self) -> tuple[int, int]:
        self.has_fetched = True
        return self._clock.now_ns(), self._clock.cpu_ns()

    def end_fetch(self, token: tuple[int, int], num_samples: int, drew: Callable[[], bool | None]) -> None:
        start_ns, cpu_ns = token
        wall_ns = self._clock.now_ns() - start_ns
        spent_ns = self._clock.cpu_ns() - cpu_ns
        self._queue.add_fetch(Fetch(self._loader, self._worker, start_ns, wall_ns, spent_ns, num_samples, drew()))
        self._gauge.at_batch()

    def close(self) -> None:
        self._gauge.at_end()
