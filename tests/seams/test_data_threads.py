"""Seams ignore data threads, and data threads wait while they are held."""

from __future__ import annotations

import threading
from typing import Any

import torch

from slipstream.seams import data_threads
from slipstream.seams.modules.outermost import OutermostFinder
from slipstream.seams.patching import Patches


def run_beside(work: Any) -> threading.Thread:
    def body() -> None:
        with data_threads.thread():
            work()

    thread = threading.Thread(target=body)
    thread.start()
    return thread


def test_transform_in_a_data_thread_does_not_restart_the_search_inside_the_model() -> None:
    """The transform runs during a call of the model, when no inner call may be taken for an outermost call."""
    found: list[Any] = []
    transform = torch.nn.Identity()

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(1, 1)

        def forward(self, x: torch.Tensor) -> Any:
            run_beside(lambda: transform(x)).join()
            return self.inner(x)

    model = Model()
    patches = Patches(lambda seam, fault: None, lambda: False)
    OutermostFinder(lambda module, args, kwargs: found.append(module)).install(patches)
    try:
        run_beside(lambda: transform(torch.ones(1))).join()
        model(torch.ones(1))
        model(torch.ones(1))
    finally:
        patches.close()
    assert found == [model, model]


def test_data_thread_waits_while_it_is_held() -> None:
    passed = threading.Event()

    def work() -> None:
        data_threads.stand_if_held()
        passed.set()

    data_threads.hold()
    try:
        thread = run_beside(work)
        assert not passed.wait(0.05)
    finally:
        data_threads.release()
    thread.join()
    assert passed.is_set() and not data_threads.is_beside()
