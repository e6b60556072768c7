"""What the machine's speed test adds to findings: only if it is of this machine, and only if the two are comparable."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.diagnose.speedtest_context import about_copying, about_handing_over, precision_ratio, reading_of
from slipstream.records import Environment, Finding, Reading, Session, SpeedTest
from slipstream.testing.made_sessions import made_anatomy, made_environment, made_loader, made_session, made_stack

LIGHT: dict[str, Any] = {"forward_ms": 3.0, "backward_ms": 6.0, "input_ms": 40.0, "num_workers": 2, "work_ms": 90}


def made_test(environment: Environment | None = None, device: str = "cpu", **values: float) -> SpeedTest:
    readings = [Reading(name, value, "", device) for name, value in values.items()]
    return SpeedTest("2026-01-01T00:00:00", environment or made_environment(), readings, 30.0, "/data")


def found(test: SpeedTest | None, cause: str, **facts: Any) -> Finding:
    session = msgspec.structs.replace(made_session(**{**LIGHT, **facts}), speedtest=test)
    return {finding.cause: finding for finding in diagnose(session).findings}[cause]


def decoding(test: SpeedTest | None, leaf: str = "PIL/ImageFile.py:load") -> str:
    """80 of 90 ms for 32 images: 2.5 ms each."""
    stacks = [made_stack("decode", 18, 80, role="worker", leaf=leaf), made_stack("read", 19, 10, role="worker")]
    return found(test, "slow_decode", stacks=stacks).advice


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (1200.0, "An image takes 2.5 ms to decode, and a photograph of 500 x 375 takes 0.83 ms on a core"),
        (1200.0, "3.0 times as long, so smaller images would cost less"),
        (420.0, "decoding is as fast as it can be here"),
    ],
)
def test_decoding(rate: float, words: str) -> None:
    assert words in decoding(made_test(decode=rate))


def test_small_pictures_and_other_decoders_cannot_be_compared() -> None:
    as_ever = decoding(None)
    assert as_ever == "The first epoch still decodes; the gain is that of all later ones."
    assert decoding(made_test(decode=100.0)) == as_ever
    assert decoding(made_test(decode=1200.0), leaf="torchaudio/load.py:load") == as_ever
    assert decoding(made_test(hand_over=500.0)) == as_ever


@pytest.mark.parametrize(
    "other",
    [{"cpu": "another"}, {"num_usable": 64.0}, {"num_logical": 128}, {"load": 5.0}],
    ids=["cpu", "quota", "cores", "busy"],
)
def test_a_test_of_another_or_a_busy_machine_is_not_used(other: dict[str, Any]) -> None:
    elsewhere = msgspec.structs.replace(made_environment(), **other)
    assert decoding(made_test(elsewhere, decode=1200.0)) == decoding(None)


def test_nor_does_any_test_where_the_check_itself_was_disturbed() -> None:
    quiet = msgspec.structs.replace(made_session(), speedtest=made_test(decode=1200.0))
    busy = msgspec.structs.replace(quiet, environment=msgspec.structs.replace(quiet.environment, load=5.0))
    assert reading_of(quiet, "decode") == 1200.0 and reading_of(busy, "decode") is None


@pytest.mark.parametrize(
    ("rate", "words"), [(400.0, "the disk itself is the limit"), (2000.0, "or from a slower place"), (100.0, "")]
)
def test_reading(rate: float, words: str) -> None:
    stacks = [made_stack("read", 14, 90, role="worker", expression="file.read()")]
    advice = found(made_test(disk_files=rate), "slow_read", stacks=stacks).advice
    assert (words in advice and "the disk of /data gives a file of 110 kB" in advice) if words else advice == ""


def test_handing_over() -> None:
    session = msgspec.structs.replace(made_session(), speedtest=made_test(hand_over=800.0))
    near = about_handing_over(session, 16_000_000, 25.0)
    assert "At the 800 MB/s" in near and "a batch of 16 MB takes 20 ms: only fewer bytes" in near
    assert "yours takes 90 ms: packing takes longer than copying" in about_handing_over(session, 16_000_000, 90.0)
    assert about_handing_over(session, 0, 90.0) == "" == about_handing_over(session, 16_000_000, 0.0)
    stacks = [made_stack("handover", 0, 90, role="worker", file=""), made_stack("handover", 50, 90)]
    [fact] = made_loader().tensor_facts
    loader = made_loader(2, tensor_facts=[msgspec.structs.replace(fact, num_bytes=16_000_000)])
    advice = found(made_test(hand_over=800.0), "heavy_handover", stacks=stacks, loader=loader).advice
    assert "a batch of 16 MB takes 20 ms" in advice


def test_starting_workers() -> None:
    def advice(test: SpeedTest | None) -> str:
        loader = made_loader(2, persistent_workers=False, num_batches=10)
        session = made_session(num_workers=2, loader=loader, work_ms=5, input_ms=0.5)
        steps = [
            msgspec.structs.replace(step, is_first_of_epoch=True, step_ms=step.step_ms + 900)
            if step.index % 10 == 0
            else step
            for step in session.steps
        ]
        session = diagnose(msgspec.structs.replace(session, steps=steps, speedtest=test))
        return {finding.cause: finding for finding in session.findings}["worker_restart"].advice

    assert "ready after 40 ms here (slipstream machine): the rest is imports" in advice(made_test(worker_start=40.0))
    assert advice(made_test(worker_start=400.0)) == advice(None)


def on_cuda(ratio: float | None) -> Session:
    environment = made_environment(device="cuda:0", has_fast_bf16=True)
    session = made_session(environment=environment, anatomy=made_anatomy({"aten::mm": (9, 90.0)}))
    test = None if ratio is None else made_test(environment, "cuda", multiply_fp32=10.0, multiply_bf16=10.0 * ratio)
    return msgspec.structs.replace(session, speedtest=test)


def precision(ratio: float | None) -> Finding | None:
    found = {finding.cause: finding for finding in diagnose(on_cuda(ratio)).findings}
    return found.get("full_precision")


def test_a_precision_gains_no_more_than_the_machine_showed() -> None:
    usual, slight, much = precision(None), precision(1.25), precision(9.0)
    assert usual is not None and slight is not None and much is not None
    assert 1.0 < slight.predicted_gain < usual.predicted_gain == much.predicted_gain
    assert "multiplies 1.2 times as fast in bf16 as in fp32" in slight.advice and usual.advice == ""
    assert precision_ratio(on_cuda(3.0), "bf16", "cuda:0") == pytest.approx(3.0)
    assert precision_ratio(on_cuda(3.0), "bf16", "cpu") is None


def test_copying() -> None:
    session = made_session(environment=made_environment(device="cuda:0"))
    test = made_test(session.environment, "cuda", copy_pinned=12.0, copy_pageable=4.1)
    session = msgspec.structs.replace(session, speedtest=test)
    assert about_copying(session, "cuda:0") == (
        "This machine copies 12.0 GB/s from pinned memory and 4.1 from other memory (slipstream machine)."
    )
    assert about_copying(made_session(), "cuda:0") == ""
    assert reading_of(session, "copy_pinned") is None, "that was the device's"
