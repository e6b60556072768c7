"""Combining samples into a batch takes a large part of the work on a batch."""

from __future__ import annotations

from slipstream.diagnose.epoch_invariance import is_text
from slipstream.diagnose.gain import gain_of
from slipstream.diagnose.hotspots import total
from slipstream.diagnose.input_path import building_site, costs_time, input_path, step_after
from slipstream.diagnose.source_hints import taking
from slipstream.diagnose.stack_facts import is_collate, is_torch_picking, line_to_change
from slipstream.diagnose.steps.selection import is_single_epoch
from slipstream.numbers import in_ms, in_percent, part_of_ms
from slipstream.records import Finding, Loader, Session, StackCount, Summary

LEAST_SHARE = 0.35
OWN = 0.8  # Share saved if the user's collate function pads or stacks with one call per batch
DEFAULT = (
    # Share saved if arrays are indexed once per batch, in place of torch's own collating of single samples. This was
    # measured to be 7 to 24 times faster.
    0.9
)

LEAST_GAIN = 1.08  # torch's own collating is part of every loader. A smaller gain is normal and is not reported.


def find(session: Session, summary: Summary) -> list[Finding]:
    path = input_path(session, summary)
    if path is None or not costs_time(summary, path) or path.loader.collate_name == "default_convert":
        return []  # With batch_size=None the dataset returns whole batches, and nothing is combined.
    site = path.loader.collate_site
    stacks = [stack for stack in path.stacks if is_collate(path, stack)]
    if site is None:  # torch picks single samples and stacks them. An index for the whole batch replaces both.
        stacks = [stack for stack in path.stacks if is_collate(path, stack) or is_torch_picking(stack)]
    share = path.share(stacks)
    if share < LEAST_SHARE:
        return []
    # A library's collator may call the user's collate function.
    own = [stack for stack in stacks if path.loader.collate_name != "default_collate" and stack.file]
    is_own = total(own) > 0.5 * total(stacks)
    if not is_own and path.loader.collate_name != "default_collate":
        return []  # A library's collator (of graphs, of tokens) builds objects that an index into arrays cannot give.
    hot = line_to_change(session, own) if is_own else None
    then_ms = step_after(session, summary, path, work_ms=path.work_ms * (1 - share * (OWN if is_own else DEFAULT)))
    if not is_own and gain_of(summary.step_ms, then_ms) < LEAST_GAIN:
        return []
    return [
        Finding(
            cause="slow_collate",
            title=taking("Collating", share),
            evidence=f"{_what(path.loader, is_own)} is {in_percent(share)} of the {in_ms(path.work_ms)} that a "
            f"step's batch takes to build; the step waits {part_of_ms(path.wait_ms, summary.step_ms)}.",
            predicted_gain=gain_of(summary.step_ms, then_ms),
            change=_change(session, own, is_own),
            site=hot.site if hot else building_site(path.loader),
            techniques=["workers"] if is_own else ["batched_fetch", "buffer_reuse"],
        )
    ]


def _change(session: Session, own: list[StackCount], is_own: bool) -> str:
    if not is_own:
        return "index the arrays once per batch: DataLoader(dataset, batch_size=None, sampler=BatchSampler(...))"
    if is_text(own) and not is_single_epoch(session):
        return "tokenize all texts once, before the training, and only pad here"
    return "torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), with rows made tensors by the dataset"


def _what(loader: Loader, is_own: bool) -> str:
    if is_own:
        return f"Collating ({loader.collate_name})"
    return f"Picking samples of the {loader.dataset_name} one by one and stacking them"
