"""Every technique of the catalogue fulfils the contract, and the contract detects one that does not."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from slipstream.records import Edit
from slipstream.techniques._core.card import YES, Card
from slipstream.techniques._core.catalogue import catalogue
from slipstream.testing import technique_contract as contract
from slipstream.testing.technique_contract import battery

# Compiling three trainings takes a minute: test_compile.py runs one, `make promises` runs all.
SLOW = set() if os.environ.get("SLIPSTREAM_EVERY") else {"compile"}
# Techniques that have an effect when two workers read images from files for two epochs.
ON_PICTURES = {
    *("fast_decode", "fast_resize", "scaled_decode", "read_ahead", "sample_cache"),
    *("buffer_reuse", "persistent_workers", "prefetch", "thread_workers"),
}
# Techniques that change a model or an optimizer, and trainings in which they do. Checkpoints of these are compared.
ON_MODELS = {
    "channels_last": ("convnet",),
    "checkpointing": ("transformer",),
    "fused_attention": ("transformer",),
    "fused_optimizer": ("convnet", "transformer", "gan"),
    "micro_batches": ("transformer", "gan"),
    "mixed_precision": ("convnet", "transformer", "gan"),
}
# Each of these needs its own process: `make promises` runs them all.
DYING = ["buffer_reuse", "persistent_workers", "prefetch", "sample_cache"] if SLOW else sorted(catalogue())


@pytest.mark.parametrize("ident", sorted(set(catalogue()) - SLOW))
def test_fulfils_the_contract(ident: str) -> None:
    results = battery(ident)
    assert len(results) >= 7
    assert all(result.is_ok for result in results), [result for result in results if not result.is_ok]
    details = {result.name: result.detail for result in results}
    for training in [*ON_MODELS.get(ident, ()), *(["pictures"] if ident in ON_PICTURES else [])]:
        assert details[f"{training}: numerics"].startswith(f"{ident}: "), details
        assert details[f"{training}: the checkpoint loads bare"].startswith("loads bare"), details


@pytest.mark.parametrize("ident", DYING)
def test_the_death_of_a_worker_is_reported(ident: str) -> None:
    lines = (
        "from slipstream.testing.technique_contract import death\n"
        f"for one in death({ident!r}): print(one.is_ok, one.detail)"
    )
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "False" not in done.stdout
    assert ident not in ON_PICTURES or "the loader's own error arrived" in done.stdout or ident == "thread_workers"


def planted(apply: Any, numerics: Any = "identical") -> ModuleType:
    module: Any = ModuleType("slipstream.techniques.planted", "Helps nobody. Hurts.")
    module.CARD = Card(title="Planted", seam="module", causes=(), numerics=numerics)
    module.applies = lambda observation: YES
    module.settings = lambda observation: [True]
    module.edit = lambda observation, setting: [Edit("planted", "by_hand", None)]
    module.apply = apply
    return module  # type: ignore[no-any-return]


def scale_gradients(context: Any, setting: Any) -> None:
    def scale(optimizer: Any, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(0.9)

    handle = torch.optim.optimizer.register_optimizer_step_pre_hook(scale)
    context.patches.on_close(handle.remove)


def leave_something(context: Any, setting: Any) -> None:
    torch.set_num_threads(2)


def swallow(context: Any, setting: Any) -> None:
    def call(inner: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return inner(*args, **kwargs)
        except BaseException:
            raise RuntimeError("something of ours") from None

    context.on_model(lambda module: context.wrap_call(module, call))


def rename(context: Any, setting: Any) -> None:
    def change(optimizer: Any) -> None:
        context.patches.on_close(optimizer.register_state_dict_post_hook(lambda _, state: {**state, "ours": 1}).remove)

    context.on_optimizer(change)


@pytest.mark.parametrize(
    ("apply", "numerics", "broken"),
    [
        (scale_gradients, "identical", "gan: numerics"),
        (scale_gradients, "reordered", "convnet: numerics"),
        (leave_something, "identical", "gan: numerics"),
        (swallow, "identical", "gan: an exception passes"),
        (rename, "identical", "gan: the checkpoint loads bare"),
    ],
)
def test_a_technique_that_breaks_the_contract_is_detected(
    apply: Any, numerics: str, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = planted(apply, numerics)
    monkeypatch.setattr(contract, "technique", lambda ident: module)
    monkeypatch.setattr(contract, "environment_of", lambda ident, setting: {})
    monkeypatch.setattr("slipstream.techniques._core.apply_recipe.technique", lambda ident: module)
    results = battery("planted", trainings=[broken.partition(":")[0]])
    torch.set_num_threads(1)
    assert broken in [result.name for result in results if not result.is_ok], results
