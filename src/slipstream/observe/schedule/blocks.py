"""The blocks of a trial of `check` or `memory`: the open block, and the messages about blocks that have ended."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from slipstream.observe.message_queue import MessageQueue
from slipstream.records import Block, BlockEnded, BlockKind
from slipstream.seams.host_clock import Clock

_AS_IT_IS = ("warmup", "watch")  # blocks in which the script runs undisturbed


class Blocks:
    """`at_end` is called after the end of a block in which the script ran undisturbed."""

    def __init__(self, queue: MessageQueue, clock: Clock, at_end: Callable[[], None]) -> None:
        self._queue = queue
        self._clock = clock
        self._at_end = at_end
        self._block = self._open(0, "start")

    @property
    def index(self) -> int:
        return self._block.index

    @property
    def kind(self) -> BlockKind:
        return self._block.kind

    def begin(self, kind: BlockKind) -> None:
        """Ends the open block and opens another one."""
        self.end()
        self._block = self._open(self._block.index + 1, kind)

    def end(self) -> None:
        block = msgspec.structs.replace(
            self._block, end_ns=self._clock.now_ns(), cpu_ns=self._clock.cpu_ns() - self._block.cpu_ns
        )
        self._queue.write(BlockEnded(block))
        if block.kind in _AS_IT_IS:
            self._at_end()

    def add_drained(self, loader: int, batch_ns: list[int]) -> None:
        """Adds the times of drained batches to the open block."""
        self._block = msgspec.structs.replace(self._block, batch_ns=batch_ns, loader=loader)

    def _open(self, index: int, kind: BlockKind) -> Block:
        now_ns, cpu_ns = self._clock.now_ns(), self._clock.cpu_ns()
        return Block(index=index, kind=kind, start_ns=now_ns, end_ns=now_ns, cpu_ns=cpu_ns)
