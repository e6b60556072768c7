"""Measures the memory that checkpointing and micro-batches save, and the time that they cost, on two transformers.

The settings take turns in one process. The allocator reports the memory of one step. Times are compared in pairs.
Writes benchmarks/results/checkpointing.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch import nn

from intervals import paired_interval
from page import machine, write_page
from slipstream.records import Choice, Recipe, Setting
from slipstream.seams.patching import Patches
from slipstream.techniques._core.apply_recipe import apply_recipe

LENGTH, BATCH, NUM_BLOCKS = 64, 8, 12
SIZES = ((320, 0.0), (128, 0.1))  # Width and dropout. The first model mostly computes, the second draws random numbers.
LEAST_TIMES, MOST_STEP = 3.0, 1.4
OURS = "checkpointing=all"
WAYS: dict[str, tuple[str, Setting] | None] = {
    "as it is": None,
    "checkpointing=all": ("checkpointing", "all"),
    "checkpointing=half": ("checkpointing", "half"),
    "micro_batches=2": ("micro_batches", 2),
    "micro_batches=4": ("micro_batches", 4),
}


def fail(name: str, fault: BaseException) -> None:
    raise RuntimeError(name) from fault


@contextmanager
def applied(choice: tuple[str, Setting] | None) -> Iterator[None]:
    patches = Patches(fail, lambda: False)
    try:
        context = apply_recipe(Recipe((Choice(*choice),) if choice else ()), patches, fail)
        yield
        if choice and (not context.changes or context.declined):
            sys.exit(f"{choice} had no effect: {context.declined}")
    finally:
        patches.close()


def transformer(width: int, dropout: float) -> nn.Module:
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=dropout, batch_first=True)
    return nn.Sequential(nn.Embedding(64, width), nn.TransformerEncoder(block, NUM_BLOCKS), nn.Linear(width, 64))


def step(model: nn.Module, tokens: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    logits = model(tokens)
    loss: Any = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    model.zero_grad(set_to_none=False)  # Gradients stay allocated, so only activations change during a step.


def peak_bytes(model: nn.Module, tokens: torch.Tensor, optimizer: torch.optim.Optimizer) -> int:
    """The largest number of bytes that a step holds in addition to the bytes that were allocated before it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        step(model, tokens, optimizer)
    now = most = 0
    events = seen.profiler.kineto_results.events()  # type: ignore[union-attr]  # Parsing events takes a minute.
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def measure(model: nn.Module, num_rounds: int) -> tuple[dict[str, int], dict[str, list[float]]]:
    """The peak bytes of each setting, and its seconds per step in every round."""
    tokens = torch.randint(0, 64, (BATCH, LENGTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    step(model, tokens, optimizer)
    peaks: dict[str, int] = {}
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    for number in range(num_rounds):
        for name, choice in WAYS.items():
            with applied(choice):
                model(tokens[:4])  # The technique inspects the model in the first call.
                if not number:
                    peaks[name] = peak_bytes(model, tokens, optimizer)
                start = time.perf_counter()
                step(model, tokens, optimizer)
                times[name].append(time.perf_counter() - start)
    return peaks, times


def section(width: int, dropout: float, num_rounds: int) -> tuple[str, bool]:
    """The section of the page, and whether checkpointing meets the requirement."""
    peaks, times = measure(transformer(width, dropout), num_rounds)
    base, rows, ratios = times["as it is"], [], {}
    for name, found in times.items():
        ratio = ratios[name] = paired_interval([a / b for a, b in zip(found, base, strict=True)])
        less = peaks["as it is"] / peaks[name]
        shown = f"{ratio.middle:.2f} ({ratio.low:.2f} to {ratio.high:.2f})" if name != "as it is" else "1"
        rows.append(f"| {name} | {peaks[name] / 1e6:.0f} | {less:.1f} | {median(found) * 1e3:.0f} | {shown} |")
    is_met = peaks["as it is"] >= LEAST_TIMES * peaks[OURS] and ratios[OURS].middle <= MOST_STEP
    return (
        f"## Width {width}, dropout {dropout:g}\n\n"
        "| | MB | times less | ms a step | times the step |\n|---|---:|---:|---:|---:|\n"
        + "\n".join(rows)
        + f"\n\nRequired of {OURS}: {LEAST_TIMES:.0f} times less memory at no more than {MOST_STEP} times the step: "
        f"{'met' if is_met else '**missed**'}.\n"
    ), is_met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    head = machine()
    found = [section(width, dropout, options.rounds) for width, dropout in SIZES]
    about = (
        f"Transformers of {NUM_BLOCKS} blocks, {BATCH} sequences of {LENGTH}, AdamW; {options.rounds} rounds in turns"
    )
    what = "the most that a step holds in addition to weights and gradients, as the allocator reports it"
    text = "\n".join(text for text, _ in found)
    write_page("checkpointing", f"# Activations computed again\n\n{head}\n\n{about}. Memory: {what}.\n\n{text}")
    if not found[0][1]:
        sys.exit("checkpointing saves too little or costs too much.")


if __name__ == "__main__":
    main()
