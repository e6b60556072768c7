"""Builds batches from samples of similar length. Such batches contain less padding.

Helps where texts or other sequences of very different lengths are padded to the longest sequence of their batch. Hurts
the randomness of the batches, because samples of similar length share a batch more often. Where lengths hardly differ,
the order stays as it is.

The permutation is the one that the plain loader draws. Sections of fifty batches are sorted by length and cut into
batches, and the batches of a section are shuffled. Every epoch still contains every sample once, in batches of the same
size. The technique applies only to loaders that torch shuffles and whose collate_fn is not torch's default. Every
sample is read once to measure its length. If that would take more than five seconds, the order stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.numbers import in_percent
from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, no
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._core.source_edits import where

if TYPE_CHECKING:
    from slipstream.data.samples.length_buckets import KnownLengths
    from slipstream.techniques._core.context import ApplyContext, LoaderArguments

CARD = Card(
    title="Batches of similar lengths",
    seam="loader",
    causes=("padding_waste",),
    numerics="redrawn",
    claims=("loader.order",),
)
VALUES = (True,)
LEAST_SHARE = 0.05  # Minimum share of padding in the tokens. With less, the gain does not justify another order.


def applies(observation: Observation) -> Answer:
    loader, anatomy = observation.loader, observation.session.anatomy
    if loader is None:
        return no("the script has no DataLoader")
    if loader.is_iterable:
        return no("an iterable dataset has its own order")
    if loader.batch_size is None or loader.batch_size < 2:
        return no("the loader has no batches of several samples")
    if loader.collate_name == "default_collate":
        return no("batches are stacked without padding")
    if anatomy is None or anatomy.padding_share is None:
        return no("no padding was recognised in the batches")
    if anatomy.padding_share < LEAST_SHARE:
        return no(f"only {in_percent(anatomy.padding_share)} of the tokens are padding")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.data.samples.length_buckets import KnownLengths

    known = KnownLengths(context.once)
    context.on_loader(lambda arguments: _regroup(context, known, arguments))


def _regroup(context: ApplyContext, known: KnownLengths, arguments: LoaderArguments) -> None:
    from torch.utils.data import RandomSampler

    from slipstream.data.samples.length_buckets import LengthBuckets, obstacle
    from slipstream.seams.user_code import current_site

    batches = arguments["batch_sampler"]
    if isinstance(getattr(batches, "sampler", None), LengthBuckets):
        return  # A framework builds the same loader a second time.
    place = where(current_site())
    reason = obstacle(arguments)
    if reason:
        context.decline(f"the loader built {place} keeps its order: {reason}")
        return
    dataset, plain = arguments["dataset"], arguments["sampler"]
    if plain is None:
        plain = RandomSampler(dataset, generator=arguments["generator"])
    arguments["sampler"] = LengthBuckets(
        plain,
        dataset,
        arguments["batch_size"],
        lambda before, after: context.changed(
            f"padding falls from {in_percent(before)} to {in_percent(after)} in the loader built {place}"
        ),
        lambda why: context.decline(f"the loader built {place} keeps its order: {why}"),
        known,
    )
    arguments["shuffle"] = None


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    loader = observation.loader
    reason = "use a batch_sampler that sorts sections of the shuffled order by length and then cuts them into batches"
    if loader is not None and loader.framework == "transformers":
        reason = (
            'set in TrainingArguments: train_sampling_strategy="group_by_length", before version 5 group_by_length=True'
        )
    return [Edit("length_buckets", "by_hand", loader.site if loader is not None else None, reason=reason)]
