"""slipstream's recipe on the same Dataset and a loader without workers, applied as `slipstream run` would.

A technique that fails while it runs fails the benchmark. What a technique declines is listed on the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from peers.work import BATCH, Job, Photographs
from recipes import parse_recipe
from slipstream.seams.patching import Patches
from slipstream.techniques._core.apply_recipe import apply_recipe


def batches(job: Job) -> Iterator[Any]:
    put_in_place(job)
    yield from endless(Photographs(job.photographs))


def endless(dataset: Dataset[Any]) -> Iterator[Any]:
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, drop_last=True)
    while True:
        yield from loader


def put_in_place(job: Job) -> None:
    complaints: list[str] = []

    def complain(name: str, fault: BaseException) -> None:
        complaints.append(f"{name}: {fault!r}")

    context = apply_recipe(
        parse_recipe(job.setting["recipe"]), Patches(complain, torch.compiler.is_dynamo_compiling), complain
    )
    # These lists grow while the loader runs, and are sent with every answer.
    job.setting.update(changes=context.changes, declined=context.declined, complaints=complaints)
