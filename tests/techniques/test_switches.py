"""Techniques that are one switch of torch: the number of threads, TF32, cuDNN's benchmark, determinism."""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from slipstream.records import Choice, Recipe
from slipstream.techniques import cpu_threads, cudnn_benchmark, determinism_off, tf32
from slipstream.techniques._core.observation import Observation
from slipstream.testing.made_sessions import made_environment, made_model, made_session


def seen(device: str = "cpu", num_usable: float = 8.0, num_convolutions: int = 3, **facts: Any) -> Observation:
    environment = made_environment(num_usable=num_usable, device=device, **facts)
    model = made_model(device, num_convolutions=num_convolutions)
    return Observation(msgspec.structs.replace(made_session(), environment=environment, models=[model]))


def test_threads_are_all_half_or_one_without_the_present_number() -> None:
    assert cpu_threads.settings(seen(num_threads=8)) == [4, 1]
    assert cpu_threads.settings(seen(num_threads=1)) == [8, 4]
    assert cpu_threads.settings(seen(num_usable=1.0, num_threads=16)) == [1]
    assert not cpu_threads.applies(seen(num_usable=1.0, num_threads=1)).is_yes
    assert not cpu_threads.applies(seen("cuda:0")).is_yes


def threads_of_worker(worker: int) -> None:
    assert torch.get_num_threads() == 1


def test_the_scripts_number_is_overridden_but_loader_workers_keep_theirs(applied: Any) -> None:
    with applied(("cpu_threads", 2)) as context:
        torch.set_num_threads(7)
        assert torch.get_num_threads() == 2
        data = TensorDataset(torch.arange(4))
        assert len(list(DataLoader(data, num_workers=1, worker_init_fn=threads_of_worker))) == 4
    assert context.changes[1] == "cpu_threads: the script's own set_num_threads(7,) -> 2"
    assert torch.get_num_threads() == 1


def test_a_spawned_loader_worker_keeps_the_one_thread_that_torch_gives_it(applied: Any) -> None:
    """The worker applies the recipe in its own process, which torch's worker loop marks as a worker."""
    from torch.utils.data._utils import worker

    with applied(("cpu_threads", 2)) as context:
        exec("torch.set_num_threads(1)", {"__name__": worker.__name__, "torch": torch})
        assert torch.get_num_threads() == 1
    assert context.changes == ["cpu_threads: threads 1 -> 2"]


def test_determinism_is_switched_off_at_the_first_call_and_put_back(applied: Any) -> None:
    with applied("determinism_off") as context:
        torch.use_deterministic_algorithms(True, warn_only=True)  # after the import, as scripts do
        try:
            nn.Linear(1, 1)(torch.ones(1))
            assert not torch.are_deterministic_algorithms_enabled()
            context.patches.close()
            assert torch.is_deterministic_algorithms_warn_only_enabled()
        finally:
            torch.use_deterministic_algorithms(False)
    assert context.changes == ["determinism_off: deterministic algorithms on -> off"]
    assert determinism_off.CARD.is_opt_in
    assert determinism_off.applies(seen(deterministic=True)).is_yes
    assert determinism_off.applies(seen()).reason == "the script does not ask for determinism"


def test_tf32_needs_units_and_a_script_that_does_not_set_it() -> None:
    assert tf32.applies(seen("cuda:0", has_tf32=True)).is_yes
    assert "Ampere" in tf32.applies(seen("cuda:0")).reason
    assert (
        tf32.applies(seen("cuda:0", has_tf32=True, matmul_precision="high")).reason == "the script allows TF32 already"
    )
    assert "is on cpu" in tf32.applies(seen()).reason


def test_cudnn_benchmark_declines_if_set_or_excluded() -> None:
    assert cudnn_benchmark.applies(seen("cuda:0")).is_yes
    assert (
        cudnn_benchmark.applies(seen("cuda:0", cudnn_benchmark=True)).reason
        == "the script sets cudnn.benchmark already"
    )
    assert "determinism" in cudnn_benchmark.applies(seen("cuda:0", deterministic=True)).reason
    assert cudnn_benchmark.applies(seen("cuda:0", num_convolutions=0)).reason == "the model has no convolutions"


def test_beside_workers_only_fewer_threads_are_tried() -> None:
    two, none = Recipe((Choice("workers", 2),)), Recipe((Choice("workers", 0),))
    assert cpu_threads.applies_with(seen(num_threads=8), two).is_yes
    assert cpu_threads.settings_with(seen(num_threads=8), two) == [6, 4, 1]
    assert cpu_threads.settings_with(seen(num_usable=2.0, num_threads=2), two) == [1]
    assert not cpu_threads.applies_with(seen(num_threads=8), none).is_yes
    assert not cpu_threads.applies_with(seen(num_threads=1), two).is_yes
    assert "cuda" in cpu_threads.applies_with(seen("cuda:0"), two).reason
