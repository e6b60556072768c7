"""Data threads: seams look past them, and they stand still when they are held."""

from __future__ import annotations

import threading
from typing import Any

import torch

from slipstream.seams import data_threads
from slipstream.seams.outermost import OutermostFinder
from slipstream.seams.patching import Patches


def run_beside(work: Any) -> threading.Thread:
    def body() -> None:
        with data_threads.thread():
            work()

    thread = threading.Thread(target=body)
    thread.start()
    return thread


def test_a_transform_in_a_data_thread_does_not_open_the_script_s_model_to_view() -> None:
    """It is called in the middle of the model, where nothing inside may be taken for an outermost call."""
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


def test_a_data_thread_stands_while_it_is_held() -> None:
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
