"""Planted faults in real trainings are rejected, and sound techniques are not."""

from __future__ import annotations

import shutil
from functools import cache

import pytest
import torch
from planted import BASE, Change, train

from slipstream.records import RANDOM_DRAWS, Fingerprint, Numerics, NumericsClass, Precision
from slipstream.verify.numerics import Controls, judge

TINY = Change(loss_scale=1e-6)  # in fp32 this makes no difference; the gradients are below fp16's smallest number
EVERYWHERE = [("convnet", "sgd"), ("convnet", "adam"), ("transformer", "sgd"), ("transformer", "adam")]
CLAIMS: tuple[NumericsClass, ...] = ("identical", "reordered", "approximate")


@cache
def _base(model: str, optimizer: str, script: Change, precision: Precision) -> tuple[Fingerprint, Controls]:
    draws = range(RANDOM_DRAWS + (precision != "fp32"))
    return train(model, optimizer, script), Controls(
        train(model, optimizer, script, num_steps=6),
        [train(model, optimizer, script, noise=(precision, draw)) for draw in draws],
        [train(model, optimizer, script, seed=seed) for seed in (1, 2, 3)],
    )


def _judge(
    claimed: NumericsClass,
    model: str,
    optimizer: str,
    change: Change,
    script: Change = BASE,
    precision: Precision = "bf16",
) -> Numerics:
    precision = precision if claimed == "approximate" else "fp32"
    base, controls = _base(model, optimizer, script, precision)
    return judge(claimed, base, train(model, optimizer, change), controls, precision)


@pytest.mark.parametrize(("model", "optimizer"), EVERYWHERE)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(Change(gradient_scale=0.9), id="gradients_scaled"),
        pytest.param(Change(gradient_scale=1.03), id="gradients_scaled_a_little"),
        pytest.param(Change(lr_scale=0.9), id="lr_scaled"),
        pytest.param(Change(skipped_batch=0), id="first_batch_skipped"),
        pytest.param(Change(skipped_batch=6), id="later_batch_skipped"),
        pytest.param(Change(label_shift=1), id="labels_shifted"),
        pytest.param(Change(has_dropout=False), id="dropout_off"),
    ],
)
def test_faults_are_rejected_whatever_is_claimed(model: str, optimizer: str, change: Change) -> None:
    for claimed in CLAIMS:
        verdict = _judge(claimed, model, optimizer, change)
        assert verdict.is_sound is False, (claimed, verdict)


@pytest.mark.parametrize("claimed", CLAIMS)
@pytest.mark.parametrize("model", ["convnet", "transformer"])
def test_lost_weight_decay_is_rejected(model: str, claimed: NumericsClass) -> None:
    verdict = _judge(claimed, model, "sgd_with_decay", Change(has_weight_decay=False))
    assert verdict.is_sound is False


@pytest.mark.parametrize("claimed", CLAIMS)
def test_batch_norm_updated_twice_is_rejected(claimed: NumericsClass) -> None:
    verdict = _judge(claimed, "convnet", "sgd", Change(is_norm_updated_twice=True))
    assert verdict.is_sound is False
    assert verdict.fault is not None
    assert claimed == "identical" or verdict.fault.tensor == "buffer"


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_tiny_gradients_that_fp16_loses_are_rejected(optimizer: str) -> None:
    lost = Change(loss_scale=TINY.loss_scale, precision=torch.float16)
    assert _judge("approximate", "convnet", optimizer, lost, TINY, "fp16").is_sound is False


@pytest.mark.parametrize(("model", "optimizer"), [*EVERYWHERE, ("dead_units", "adam")])
def test_lower_precision_is_accepted_as_approximate_alone(model: str, optimizer: str) -> None:
    for precision, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        verdict = _judge("approximate", model, optimizer, Change(precision=dtype), precision=precision)
        assert verdict.is_sound, verdict
    assert _judge("reordered", model, optimizer, Change(precision=torch.bfloat16)).is_sound is False


@pytest.mark.parametrize(
    ("model", "optimizer", "change"),
    [
        pytest.param("convnet", "sgd", Change(is_channels_last=True), id="channels_last_before_batch_norm_sgd"),
        pytest.param("convnet", "adam", Change(is_channels_last=True), id="channels_last_before_batch_norm_adam"),
        pytest.param("convnet", "sgd", Change(num_threads=2), id="threads"),
        pytest.param("transformer", "sgd", Change(is_fused=True), id="fused_sgd"),
        pytest.param("transformer", "adam", Change(is_fused=True), id="fused_adam"),
    ],
)
def test_other_rounding_is_accepted(model: str, optimizer: str, change: Change) -> None:
    verdict = _judge("reordered", model, optimizer, change)
    assert verdict.is_sound, verdict


OWN = Change(precision=torch.bfloat16)  # a script that uses autocast itself


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_script_in_lower_precision_is_compared_by_its_own_rounding(optimizer: str) -> None:
    same = Change(precision=torch.bfloat16, is_channels_last=True)
    verdict = _judge("reordered", "convnet", optimizer, same, script=OWN)
    assert verdict.is_sound, verdict
    assert verdict.num_evidence < verdict.num_tensors, "biases before batch norm are rounding"
    scaled = Change(precision=torch.bfloat16, gradient_scale=0.9)
    assert _judge("reordered", "convnet", optimizer, scaled, script=OWN).is_sound is False


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_compiled_code_is_accepted() -> None:
    import torch._inductor.config

    torch.compiler.reset()
    with torch._inductor.config.patch(fallback_random=True):
        verdict = _judge("reordered", "perceptron", "adam", Change(is_compiled=True))
        both = Change(is_compiled=True, precision=torch.bfloat16)
        verdict_of_both = _judge("approximate", "dead_units", "adam", both)
    torch.compiler.reset()
    assert verdict.is_sound, verdict
    assert verdict.basis == "tensors", "nothing was compiled"
    assert verdict_of_both.is_sound, verdict_of_both


def test_the_same_again_is_bit_equal() -> None:
    verdict = _judge("identical", "convnet", "sgd", BASE)
    assert verdict.is_sound
    assert (verdict.basis, verdict.num_steps) == ("bits", 16)
