from __future__ import annotations

from typing import Any

from slipstream.techniques import length_buckets
from slipstream.techniques._core.observation import Observation
from slipstream.testing.made_sessions import made_anatomy, made_loader, made_session


def seen(padding: float | None = 0.4, **loader: Any) -> Observation:
    made = made_loader(**{"collate_name": "pad", **loader})
    return Observation(made_session(loader=made, anatomy=made_anatomy({"aten::mm": (1, 1.0)}, padding_share=padding)))


def test_it_declines_with_a_reason() -> None:
    assert length_buckets.applies(seen()).is_yes and length_buckets.settings(seen()) == [True]
    assert "no DataLoader" in length_buckets.applies(Observation(made_session(has_loader=False))).reason
    assert "iterable" in length_buckets.applies(seen(is_iterable=True)).reason
    assert "several samples" in length_buckets.applies(seen(batch_size=1)).reason
    assert "stacked" in length_buckets.applies(seen(collate_name="default_collate")).reason
    assert "recognised" in length_buckets.applies(seen(None)).reason
    assert "only 2%" in length_buckets.applies(seen(0.02)).reason


def test_the_edit_uses_the_frameworks_option() -> None:
    (edit,) = length_buckets.edit(seen(framework="transformers"), True)
    assert "group_by_length" in edit.reason
    assert "batch_sampler" in length_buckets.edit(seen(), True)[0].reason
