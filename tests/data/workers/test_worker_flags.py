from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from slipstream.data.workers.worker_flags import WorkerFlags
from slipstream.testing.jpegs import installed


class Telling(Dataset[Any]):
    def __init__(self, flags: WorkerFlags) -> None:
        self.flags = flags

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        self.flags.raise_flag(index % 2)
        return torch.tensor(index)


def test_what_a_worker_says_is_heard_once_with_the_next_batch() -> None:
    heard: list[str] = []
    flags = WorkerFlags(lambda: heard.append("first"), lambda: heard.append("second"), lambda: heard.append("never"))
    with installed(flags):
        for _ in range(2):
            list(DataLoader(Telling(flags), 1, num_workers=1))
    assert sorted(heard) == ["first", "second"]


def test_what_is_said_here_is_heard_at_once() -> None:
    heard: list[str] = []
    flags = WorkerFlags(lambda: heard.append("first"), lambda: heard.append("second"))
    flags.raise_flag(1)
    flags.raise_flag(1)
    assert heard == ["second"]


class Explaining(Telling):
    def __getitem__(self, index: int) -> torch.Tensor:
        self.flags.raise_flag(index % 2, f"{index}: " + "ä" * 400)
        return torch.tensor(index)


def test_a_sentence_comes_along_as_far_as_it_fits() -> None:
    heard: list[str] = []
    flags = WorkerFlags(lambda: heard.append(flags.text(0)), lambda: heard.append(flags.text(1)))
    with installed(flags):
        list(DataLoader(Explaining(flags), 1, num_workers=1))
    assert [one[:4] for one in sorted(heard)] == ["0: ä", "1: ä"] and all(200 < len(one) < 300 for one in heard)
