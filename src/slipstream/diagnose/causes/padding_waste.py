"""A large part of the tokens that the model computes is padding."""

from __future__ import annotations

from slipstream.diagnose.gain import gain_without
from slipstream.diagnose.operator_shares import compute_phases_ms, is_compute_bound
from slipstream.diagnose.steps.selection import main_model, training_loader
from slipstream.numbers import in_percent, part_of_ms
from slipstream.records import Finding, Loader, Session, Site, Summary

LEAST_SHARE = 0.15
SAVED = 0.8  # Share of the padding that is saved. Batches of similar lengths still contain some padding.
# Collate functions that stack samples of equal length. The dataset has padded these samples to a fixed length.
STACKED = ("default_collate", "default_data_collator")


def find(session: Session, summary: Summary) -> list[Finding]:
    loader = training_loader(session)
    share = session.anatomy.padding_share if session.anatomy is not None else None
    if share is None or share < LEAST_SHARE or not is_compute_bound(summary):
        return []
    # The time of the optimizer depends on the weights and not on the number of tokens.
    tokens_ms = compute_phases_ms(summary) - (summary.device_phases or summary.phases).get("optimizer", 0.0)
    is_stacked = loader is not None and loader.collate_name in STACKED
    return [
        Finding(
            cause="padding_waste",
            title="The model computes padding",
            evidence=f"{in_percent(share)} of the tokens in {_looked_at(session)} are padding, and the model's passes "
            f"take {part_of_ms(tokens_ms, summary.step_ms)}.",
            predicted_gain=gain_without(summary.step_ms, tokens_ms * share, SAVED),
            change=_change(session, loader),
            site=_site(session, loader),
            techniques=[] if is_stacked or loader is None else ["length_buckets"],
            advice="Batches of similar lengths would contain even less padding." if is_stacked else "",
        )
    ]


def _looked_at(session: Session) -> str:
    num = session.anatomy.padding_batches if session.anatomy is not None else 1
    return f"{num} batches looked at" if num > 1 else "the one batch looked at (others may have more or less of it)"


def _site(session: Session, loader: Loader | None) -> Site | None:
    """The line that builds batches; without a loader, the line that passes them to the model."""
    if loader is None:
        model = main_model(session)
        return model.site if model is not None else None
    return loader.site if loader.collate_name in STACKED else loader.collate_site or loader.site


def _change(session: Session, loader: Loader | None) -> str:
    if loader is not None and loader.collate_name in STACKED:
        if loader.framework == "transformers":
            return 'tokenize without padding="max_length", and data_collator=DataCollatorWithPadding(tokenizer)'
        return "return samples unpadded, and pad to the longest of the batch in a collate_fn: pad_sequence(...)"
    if loader is None:  # It is unknown whether samples are padded to a fixed length or to the longest of the batch.
        return "pad to the longest of the batch; sort sections of the shuffled order by length, then form batches"
    if loader.framework != "transformers":
        return "batch similar lengths together: sort sections of the shuffled order by length, then form batches"
    version = session.environment.libraries.get("transformers", "")
    is_old = version.partition(".")[0] in ("3", "4")
    return "group_by_length=True" if is_old else 'train_sampling_strategy="group_by_length"'
