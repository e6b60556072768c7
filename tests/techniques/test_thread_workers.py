"""When thread_workers applies, and which settings it tries."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from slipstream.diagnose import diagnose
from slipstream.recipe.conflicts import find_conflicts
from slipstream.records import StackCount, TensorFacts
from slipstream.techniques import (
    batched_fetch,
    byte_transfer,
    persistent_workers,
    sample_cache,
    thread_workers,
    workers,
)
from slipstream.techniques._core.observation import Observation
from slipstream.testing.made_sessions import made_environment, made_loader, made_session, made_stack


def seen(
    input_ms: float = 20.0, cores: float = 8, stacks: list[StackCount] | None = None, **loader: Any
) -> Observation:
    made = made_loader(**{"persistent_workers": False, **loader})
    session = made_session(
        input_ms=input_ms,
        environment=made_environment(num_usable=cores),
        loader=made,
        num_workers=made.num_workers,
        stacks=stacks or [],
    )
    return Observation(diagnose(session))


def why_not(observation: Observation) -> str:
    answer = thread_workers.applies(observation)
    assert not answer.is_yes
    return answer.reason


def test_declines_with_a_reason() -> None:
    assert thread_workers.applies(seen()).is_yes
    assert why_not(Observation(made_session(has_loader=False))) == "the script has no DataLoader"
    assert "one by one" in why_not(seen(is_iterable=True))
    assert "input takes only" in why_not(seen(input_ms=0.1))
    for technique in (thread_workers, workers):
        answer = technique.applies(seen(num_threads=2))
        assert answer.is_already_so and answer.reason == "2 threads of slipstream.DataLoader build the batches"
    assert "on cuda:0" in why_not(seen(tensor_facts=[TensorFacts("[0]", [4], "float32", "cuda:0", 16)]))
    assert "only 1 batch" in why_not(seen(num_batches=1))
    assert "memory has no room" in why_not(seen(tensor_facts=[TensorFacts("[0]", [4], "float32", "cpu", 2**33)]))


def test_it_applies_to_decoding_but_not_to_python_code() -> None:
    looping = [made_stack("python", 12, 80, in_call=False), made_stack("decode", 11, 20)]
    assert "80% of the work on a batch is Python code" in why_not(seen(stacks=looping))
    decoding = [made_stack("python", 12, 20, in_call=False), made_stack("decode", 11, 80)]
    assert thread_workers.applies(seen(stacks=decoding)).is_yes


def test_settings_are_the_prediction_and_its_neighbours() -> None:
    assert thread_workers.settings(seen(cores=2.0)) == [2, 1]
    assert set(thread_workers.settings(seen(cores=4.0))) == {1, 2, 4}
    # the script's two workers are processes, so two threads differ from them
    assert thread_workers.settings(seen(cores=2.0, num_workers=2)) == [2, 1]


def test_shared_memory_is_not_needed() -> None:
    observation = seen(tensor_facts=[TensorFacts("[0]", [4], "float32", "cpu", 100_000_000)])
    small = msgspec.structs.replace(observation.session.environment, shm_free_bytes=64_000_000)
    tight = Observation(msgspec.structs.replace(observation.session, environment=small))
    assert not workers.applies(tight).is_yes and thread_workers.applies(tight).is_yes


def test_replaces_worker_processes() -> None:
    cards = {
        "workers": workers.CARD,
        "persistent_workers": persistent_workers.CARD,
        "thread_workers": thread_workers.CARD,
    }
    assert len([c for c in find_conflicts(cards) if "thread_workers" in (c.left, c.right)]) == 2


def test_techniques_for_processes_are_not_combined_with_threads() -> None:
    cards = {
        "sample_cache": sample_cache.CARD,
        "byte_transfer": byte_transfer.CARD,
        "batched_fetch": batched_fetch.CARD,
    }
    found = find_conflicts({**cards, "thread_workers": thread_workers.CARD})
    assert {c.left for c in found if c.right == "thread_workers"} == {"sample_cache", "byte_transfer"}


def test_techniques_for_processes_report_no_change_with_threads(applied: Any) -> None:
    with applied("buffer_reuse", ("read_ahead", 8), ("thread_workers", 2)) as context:
        loader = DataLoader(Squares(), 2, num_workers=1)
        assert len(list(loader)) == 4
    assert [sentence.split(":")[0] for sentence in context.changes] == ["thread_workers"]
    assert [sentence.split(":")[0] for sentence in context.declined] == [
        "read_ahead"
    ] and "threads" in context.declined[0]


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index**2)


def test_the_edit_is_by_hand() -> None:
    (edit,) = thread_workers.edit(seen(), 2)
    assert edit.kind == "by_hand" and "slipstream run" in edit.reason


def test_import_edit_uses_our_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    first, second = thread_workers.import_edit(seen(), 2)
    assert (first.kind, first.call, first.text) == ("loader", "DataLoader", "slipstream.DataLoader")
    assert (second.kind, second.argument, second.text) == ("argument", "thread_workers", "2")
    assert not thread_workers.import_edit(seen(framework="transformers"), 2), "it ignores the class of the loader"


def test_threads_wait_asleep_if_cores_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert thread_workers.environment(2) == workers.environment(2) == {"OMP_WAIT_POLICY": "PASSIVE"}
    assert thread_workers.environment(1) == {}
