from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from slipstream.data.workers.worker_flags import WorkerFlags
from slipstream.testing.jpegs import installed


class Flagging(Dataset[Any]):
    def __init__(self, flags: WorkerFlags) -> None:
        self.flags = flags

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        self.flags.raise_flag(index % 2)
        return torch.tensor(index)


def test_a_flag_of_a_worker_is_received_once_with_the_next_batch() -> None:
    heard: list[str] = []
    flags = WorkerFlags(lambda: heard.append("first"), lambda: heard.append("second"), lambda: heard.append("never"))
    with installed(flags):
        for _ in range(2):
            list(DataLoader(Flagging(flags), 1, num_workers=1))
    assert sorted(heard) == ["first", "second"]


def test_a_flag_of_this_process_is_received_at_once() -> None:
    heard: list[str] = []
    flags = WorkerFlags(lambda: heard.append("first"), lambda: heard.append("second"))
    flags.raise_flag(1)
    flags.raise_flag(1)
    assert heard == ["second"]


class Explaining(Flagging):
    def __getitem__(self, index: int) -> torch.Tensor:
        self.flags.raise_flag(index % 2, f"{index}: " + "ä" * 400)
        return torch.tensor(index)


def test_a_text_is_truncated_to_its_space() -> None:
    heard: list[str] = []
    flags = WorkerFlags(lambda: heard.append(flags.text(0)), lambda: heard.append(flags.text(1)))
    with installed(flags):
        list(DataLoader(Explaining(flags), 1, num_workers=1))
    assert [one[:4] for one in sorted(heard)] == ["0: ä", "1: ä"] and all(200 < len(one) < 300 for one in heard)
