"""Forked workers copy a dataset's Python objects. The test uses real workers; those that read an array copy nothing."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from slipstream.diagnose.causes import worker_memory
from slipstream.observe.assemble import assemble
from slipstream.observe.worker_memory import private_bytes
from slipstream.records import Ending, Finding, Session
from slipstream.seams.large_containers import find_container
from slipstream.testing.made_sessions import made_environment
from slipstream.trial.lifecycle import TrialSettings, start_run
from slipstream.wire.spool import SpoolReader

NUM = 200_000


class Names(Dataset[Any]):
    def __init__(self, names: Any) -> None:
        self.names = names

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, index: int) -> int:
        return len(self.names[index])


def strings() -> list[str]:
    return [f"/data/photographs/of/everything/{index:09d}.jpg" for index in range(NUM)]


def watched(dataset: Any, folder: Path) -> Session:
    gc.collect()
    run = start_run(TrialSettings(mode="watch", spool=str(folder), script=["train.py"]))
    try:
        loader = DataLoader(dataset, batch_size=250, num_workers=1, shuffle=True)
        for step, _ in enumerate(loader):
            if step == 60:
                break
        del loader
    finally:
        run.leave(Ending("finished", 0, 1.0))
    return assemble(
        SpoolReader(folder).read(),
        command="watch",
        script=["train.py"],
        cwd="/",
        created="",
        environment=made_environment(),
        ending=Ending("finished", 0, 1.0),
    )


def found(session: Session) -> list[Finding]:
    return worker_memory.find(session, None)  # type: ignore[arg-type]


@pytest.mark.skipif(private_bytes() is None, reason="this system does not tell")
def test_a_list_of_strings_is_copied_by_the_worker(tmp_path: Path) -> None:
    torch.manual_seed(0)
    session = watched(Names(strings()), tmp_path)
    (memory,) = session.worker_memory
    assert memory.num_batches > 20 and memory.last_bytes - memory.first_bytes > 4_000_000
    (finding,) = found(session)
    assert (
        "names of the dataset is a list of 200,000 str" in finding.evidence and "own memory grew by" in finding.evidence
    )
    assert finding.change == 'self.names = np.array(names, dtype="U")' and finding.predicted_gain == 1.0


@pytest.mark.skipif(private_bytes() is None, reason="this system does not tell")
def test_an_array_of_strings_is_not(tmp_path: Path) -> None:
    torch.manual_seed(0)
    session = watched(Names(np.array(strings(), dtype="U")), tmp_path)
    (memory,) = session.worker_memory
    assert memory.last_bytes - memory.first_bytes < 4_000_000 and found(session) == []


def test_containers_are_found_in_nested_attributes() -> None:
    many = list(range(1000, 61_000))
    container = find_container(Subset(Names({number: str(number) for number in many}), [1, 2]))
    assert container is not None
    assert (container.name, container.kind, container.element, container.num_objects) == (
        "dataset.names",
        "dict",
        "str",
        60_000,
    )
    objects = find_container(Names(np.array([str(number) for number in many], dtype=object)))
    assert objects is not None and objects.num_objects == 60_000
    for harmless in ([None] * 60_000, many[:1000], np.array(many), torch.tensor(many), "a" * 100_000):
        assert find_container(Names(harmless)) is None
    assert find_container(list(range(60_000))) is None, "has no attributes"
