"""Errors in a worker are torch's own, with and without reused buffers."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from slipstream.data.transport.buffer_mirror import MIRRORS

Applied = Callable[..., Any]


class Faulty(Dataset[Any]):
    def __init__(self, what: str) -> None:
        self.what = what

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        if index == 21:
            if self.what == "kill":
                time.sleep(0.5)  # wait until earlier batches arrive, because torch gets their memory from this process
                os.kill(os.getpid(), signal.SIGKILL)
            if self.what == "raise":
                raise ValueError("a broken sample")
            if self.what == "unequal":
                return torch.zeros(7)
            if self.what == "unpicklable":
                return torch.zeros(5), lambda: None
        return torch.zeros(5)


def faulty_collate(samples: Any) -> Any:
    return samples if any(type(sample) is tuple for sample in samples) else default_collate(samples)


@pytest.mark.parametrize("what", ["kill", "raise", "unequal", "unpicklable"])
def test_errors_are_torchs_own(
    applied: Applied, message_of: Callable[..., str], what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def play() -> tuple[int, str]:
        num_batches = 0
        collate, timeout = (faulty_collate, 1) if what == "unpicklable" else (None, 0)
        iterator = iter(DataLoader(Faulty(what), 4, num_workers=1, collate_fn=collate, timeout=timeout))

        def run() -> None:
            nonlocal num_batches
            for _ in iterator:
                num_batches += 1

        message = message_of(run, Exception)
        iterator._shutdown_workers()  # type: ignore[attr-defined]  # the traceback would keep the workers alive
        message = "".join(letter for letter in message if not letter.isdigit())
        # Torch reports a dead worker in two ways.
        return num_batches, message.partition("exited")[0].partition("is killed")[0]

    bare = play()
    with applied(buffer_reuse=True):
        assert play() == bare
    assert bare[0] <= 5 and "src/slipstream" not in bare[1]
    gc.collect()
    assert len(MIRRORS) == 0
