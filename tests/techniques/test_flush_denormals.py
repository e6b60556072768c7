"""Denormals are zero in every thread of the pool while the recipe is applied, and normal again afterwards."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from slipstream.data.threads.openmp import run_in_pool, share_that_flushes
from slipstream.records import Recipe
from slipstream.techniques import flush_denormals
from slipstream.techniques._core.observation import Observation
from slipstream.testing.made_sessions import made_anatomy, made_session


def test_every_thread_flushes_including_running_ones(applied: Any) -> None:
    torch.set_num_threads(2)
    assert share_that_flushes() == 0.0  # the pool has two threads from now on
    torch.set_flush_denormal(True)
    assert 0.0 < share_that_flushes() < 1.0  # the result for a script that only calls torch's function
    torch.set_flush_denormal(False)
    with applied("flush_denormals") as context:
        nn.Linear(2, 2)(torch.ones(1, 2))
        assert share_that_flushes() == 1.0
    assert context.changes == ["flush_denormals: denormals are zero in 2 threads"]
    assert share_that_flushes() == 0.0


def test_the_pool_runs_a_function_once_in_each_thread() -> None:
    import threading

    torch.set_num_threads(2)
    seen: list[int] = []
    assert run_in_pool(lambda: seen.append(threading.get_ident()))
    assert len(seen) == len(set(seen)) == 2


def test_a_script_that_flushes_already_is_not_changed(applied: Any) -> None:
    torch.set_flush_denormal(True)
    try:
        with applied("flush_denormals") as context:
            nn.Linear(2, 2)(torch.ones(1, 2))
        assert context.declined == ["flush_denormals: denormals are already flushed"]
        assert (torch.tensor(torch.finfo(torch.float32).tiny) / 2).item() == 0.0
    finally:
        torch.set_flush_denormal(False)


def test_without_denormals_it_applies_only_if_steps_become_slower() -> None:
    session = made_session(anatomy=made_anatomy({}, denormal_share=0.0))
    answer = flush_denormals.applies(Observation(session))
    assert not answer.is_yes and "no denormal number was found" in answer.reason
    assert flush_denormals.applies_with(Observation(session, is_slowing=True), Recipe()).is_yes
    assert not flush_denormals.applies_with(Observation(session), Recipe()).is_yes
    found = Observation(made_session(anatomy=made_anatomy({}, denormal_share=0.5)), is_slowing=True)
    assert flush_denormals.applies(found).is_yes and not flush_denormals.applies_with(found, Recipe()).is_yes
