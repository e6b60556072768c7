"""When reused buffers and reading ahead apply, and what they change."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.recipe.conflicts import find_conflicts
from slipstream.records import Choice, Recipe, TensorFacts
from slipstream.techniques import buffer_reuse, length_buckets, read_ahead
from slipstream.techniques._core.observation import Observation
from slipstream.testing.made_sessions import made_environment, made_loader, made_session, made_stack

WORKERS = Recipe((Choice("workers", 2),))
BATCH = [TensorFacts("[0]", [32, 3, 512, 512], "float32", "cpu", 100_000_000)]


def seen(num_workers: int = 0, machine: Any = None, stacks: Any = (), **loader: Any) -> Observation:
    environment = msgspec.structs.replace(made_environment(), **(machine or {}))
    made = made_loader(num_workers, **loader)
    return Observation(
        diagnose(
            made_session(
                environment=environment, loader=made, num_workers=num_workers, stacks=stacks, work_ms=90, input_ms=40
            )
        )
    )


def test_buffer_reuse_needs_workers() -> None:
    assert "no workers" in buffer_reuse.applies(seen()).reason
    assert buffer_reuse.applies(seen(2)).is_yes
    assert buffer_reuse.applies_with(seen(), WORKERS).is_yes
    assert "threads" in buffer_reuse.applies_with(seen(2), Recipe((Choice("thread_workers", 2),))).reason
    assert "no workers" in buffer_reuse.applies_with(seen(2), Recipe((Choice("workers", 0),))).reason
    assert buffer_reuse.applies(Observation(made_session(has_loader=False))).reason == "the script has no DataLoader"


def test_buffers_need_room_in_shared_memory() -> None:
    assert "/dev/shm" in buffer_reuse.applies(seen(2, {"shm_bytes": None})).reason
    tight = {"shm_free_bytes": 1_500_000_000}  # half of it is seven batches, and two workers keep ten
    assert "no room" in buffer_reuse.applies(seen(2, tight, tensor_facts=BATCH)).reason
    assert buffer_reuse.applies(seen(1, tight, tensor_facts=BATCH)).is_yes


def reading(share: int) -> Any:
    return [
        made_stack("read", 14, share, role="worker", expression="file.read()"),
        made_stack("transform", 19, 100 - share, role="worker"),
    ]


def test_reading_ahead_needs_something_to_read() -> None:
    assert read_ahead.applies(seen(2, stacks=reading(60))).is_yes
    assert "only 5% of the work" in read_ahead.applies(seen(2, stacks=reading(5))).reason
    assert read_ahead.applies(seen(2, {"disk_kind": "network"}, reading(5))).is_yes  # the files may have been in memory
    assert "in memory" in read_ahead.applies(seen(2, {"disk_kind": "memory"}, reading(60))).reason


@pytest.mark.parametrize(
    ("facts", "reason"),
    [({"is_iterable": True}, "no order"), ({"start_method": "spawn"}, "the files that they open are not seen")],
)
def test_reading_ahead_declines_with_a_reason(facts: Any, reason: str) -> None:
    assert reason in read_ahead.applies(seen(2, stacks=reading(60), **facts)).reason
    assert read_ahead.applies(Observation(made_session(has_loader=False))).reason == "the script has no DataLoader"


def test_reading_ahead_does_not_conflict_with_techniques_for_the_order() -> None:
    assert find_conflicts({"read_ahead": read_ahead.CARD, "length_buckets": length_buckets.CARD}) == []


def test_depths_are_shorter_than_an_epoch() -> None:
    assert read_ahead.settings(seen(2, num_batches=20)) == [8]
    assert read_ahead.settings(seen(2, num_batches=None)) == [8, 32]
    assert read_ahead.settings(seen(2, num_batches=5)) == [8]


@pytest.mark.parametrize("module", [buffer_reuse, read_ahead])
def test_the_edit_is_by_hand(module: Any) -> None:
    (edit,) = module.edit(seen(2), module.settings(seen(2))[0])
    assert edit.kind == "by_hand" and edit.reason and f".{edit.technique}" in f".{module.__name__}"
