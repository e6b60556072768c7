from __future__ import annotations

from typing import Any

import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.records import Finding, Site
from slipstream.testing.made_sessions import FILE, LOADER_SITE, made_anatomy, made_loader, made_session

COLLATE = Site(FILE, 20, "def pad(samples):", "pad")


def findings(share: float | None, input_ms: float = 1.0, libraries: Any = None, **loader: Any) -> dict[str, Finding]:
    made = made_loader(**{"collate_name": "pad", "collate_site": COLLATE, **loader})
    anatomy = made_anatomy({"aten::mm": (12, 24.0)}, padding_share=share)
    session = made_session(input_ms=input_ms, forward_ms=10, backward_ms=20, anatomy=anatomy, loader=made)
    environment = msgspec.structs.replace(session.environment, libraries=libraries or {})
    found = diagnose(msgspec.structs.replace(session, environment=environment)).findings
    return {finding.cause: finding for finding in found}


def test_tokens_that_are_padding() -> None:
    found = findings(0.4)["padding_waste"]
    assert "40%" in found.evidence and found.site == COLLATE and found.techniques == ["length_buckets"]
    assert 1.2 < found.predicted_gain < 1.0 / (1.0 - 0.4 * 0.8) + 0.01


@pytest.mark.parametrize(("batches", "words"), [(1, "the one batch looked at"), (9, "of the tokens in 9 batches")])
def test_evidence_names_the_number_of_batches(batches: int, words: str) -> None:
    anatomy = made_anatomy({"aten::mm": (12, 24.0)}, padding_share=0.4, padding_batches=batches)
    (found,) = diagnose(made_session(input_ms=1, forward_ms=10, backward_ms=20, anatomy=anatomy)).findings
    assert found.cause == "padding_waste" and words in found.evidence


def test_samples_that_are_all_padded_to_one_length() -> None:
    found = findings(0.4, collate_name="default_collate")["padding_waste"]
    assert "pad_sequence" in found.change and found.techniques == [] and found.site == LOADER_SITE


def test_a_trainer_whose_samples_are_padded_to_one_length() -> None:
    """Batches of similar lengths would be as wide as before."""
    found = findings(0.4, framework="transformers", collate_name="default_data_collator")["padding_waste"]
    assert "DataCollatorWithPadding" in found.change and found.techniques == []


def test_padding_is_named_where_no_loader_feeds_the_model() -> None:
    """As with torchtext's iterators or batches sliced by hand: the line that calls the model is shown."""
    anatomy = made_anatomy({"aten::mm": (12, 24.0)}, padding_share=0.4)
    session = made_session(input_ms=0, forward_ms=10, backward_ms=20, anatomy=anatomy, has_loader=False)
    (found,) = diagnose(session).findings
    assert (found.cause, found.site, found.techniques) == ("padding_waste", session.models[0].site, [])
    assert "longest of the batch" in found.change and "by length" in found.change


@pytest.mark.parametrize(("version", "change"), [("4.45.0", "group_by_length=True"), ("5.2.0", "train_sampling")])
def test_a_trainer_has_a_switch_for_it(version: str, change: str) -> None:
    found = findings(0.4, libraries={"transformers": version}, framework="transformers")["padding_waste"]
    assert found.change.startswith(change)


@pytest.mark.parametrize(("share", "input_ms"), [(None, 1.0), (0.1, 1.0), (0.4, 200.0)])
def test_little_padding_or_a_step_that_waits_for_input(share: float | None, input_ms: float) -> None:
    assert "padding_waste" not in findings(share, input_ms)
