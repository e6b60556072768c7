from __future__ import annotations

import msgspec
import pytest

from slipstream.records import IdleGpu
from slipstream.report.text.notes import all_notes, idle_gpu_sentence
from slipstream.testing.made_sessions import made_session


@pytest.mark.parametrize(
    ("cause", "words"),
    [("cpu_build", "built for the CPU only"), ("invisible", "CUDA_VISIBLE_DEVICES"), ("unused", '.to("xpu")')],
)
def test_an_unused_gpu_is_a_sentence_with_its_cause(cause: object, words: str) -> None:
    session = made_session()
    torch = session.environment.torch
    assert torch is not None
    environment = msgspec.structs.replace(
        session.environment, torch=msgspec.structs.replace(torch, accelerator="xpu", version="2.13.0")
    )
    session = msgspec.structs.replace(session, environment=environment)
    sentence = idle_gpu_sentence(session, msgspec.convert({"name": "Made GPU", "cause": cause}, IdleGpu))
    assert sentence.startswith("The device is the CPU although a GPU is present (Made GPU): ") and words in sentence


def test_notes_of_the_trials_come_before_those_of_the_diagnosis() -> None:
    session = msgspec.structs.replace(
        made_session(),
        notes=["trial"],
        diagnosis_notes=["diagnosis"],
        idle_gpu=IdleGpu("Made GPU", "unused"),
        no_overlay="--no-overlay",
    )
    gpu, trial, overlay, diagnosis = all_notes(session)
    assert "Made GPU" in gpu and "(--no-overlay)" in overlay and (trial, diagnosis) == ("trial", "diagnosis")
    older = msgspec.structs.replace(made_session(), notes=["both"], diagnosis_notes=None)
    assert all_notes(older) == ["both"]
