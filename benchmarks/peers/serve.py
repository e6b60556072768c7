"""The process of one contestant.

It reads questions from stdin, one line of JSON each, and answers on stdout with the rate of the requested number of
batches. After each batch follows a step that leaves the processor idle.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from peers.work import Job

STEP_S = 0.005
PAGE_FLOATS = 1024


class Counted:
    """Iterates over batches, and counts the images in them."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self.num_images = 0

    def __iter__(self) -> Counted:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        self.num_images += len(batch[0])
        return batch


class Look:
    """Statistics of the batches, from those that are not timed."""

    def __init__(self) -> None:
        self.means: list[float] = []
        self.squares: list[float] = []
        self.shape = ""

    def at(self, images: torch.Tensor) -> None:
        assert bool(images.isfinite().all()), "a pixel is not a number"
        self.means.append(float(images.mean()))
        self.squares.append(float(images.square().mean()))
        shape = f"{'x'.join(map(str, images.shape))} {str(images.dtype).removeprefix('torch.')}"
        assert self.shape in ("", shape), f"a batch of {shape} after one of {self.shape}"
        self.shape = shape

    def facts(self) -> dict[str, Any]:
        mean = sum(self.means) / len(self.means)
        return {"mean": mean, "std": (sum(self.squares) / len(self.squares) - mean**2) ** 0.5, "shape": self.shape}


def idle(images: torch.Tensor) -> None:
    time.sleep(STEP_S)


def touch(images: torch.Tensor) -> None:
    """Read every page once, as a user of the batch would. Memory that is mapped but never read would cost nothing."""
    images.view(-1)[::PAGE_FLOATS].sum()


def answer(question: dict[str, Any], batches: Iterator[Any], look: Look, step: Any) -> dict[str, Any]:
    """Run the lead-in and then the timed batches, and return the rate.

    The timed part has a minimum number of batches and a minimum length, because a fast loader would otherwise be timed
    while its caches are cold. The last batch is inspected after the clock has stopped. Batches that the loader
    prefetches meanwhile are consumed in the next lead-in. A question without timed batches is a warm-up.
    """
    if not question["timed"]:
        for _ in range(question["lead_in"]):
            look.at(next(batches)[0])
        return {}
    run_block(batches, step, question["lead_in"], question["lead_in_s"])
    num_images, seconds, images = run_block(batches, step, question["timed"], question["timed_s"])
    look.at(images)
    return {"rate": num_images / seconds}


def run_block(batches: Iterator[Any], step: Any, num_batches: int, least_s: float) -> tuple[int, float, torch.Tensor]:
    """Returns the number of images, the seconds, and the last batch."""
    num_images, start = 0, time.perf_counter()
    while True:
        images = next(batches)[0]
        num_images += len(images)
        step(images)
        num_batches -= 1
        seconds = time.perf_counter() - start
        if num_batches <= 0 and seconds >= least_s:
            return num_images, seconds, images


def main() -> None:
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    spec = json.loads(sys.argv[1])
    job = Job(Path(spec["photographs"]), Path(spec["folder"]), spec["setting"])
    torch.set_num_threads(1)  # the step does not compute, and loaders have their own threads or processes
    look = Look()
    try:
        peer = importlib.import_module(f"peers.{spec['peer']}")
        name = getattr(peer, "DISTRIBUTION", "")
        version = {"version": f" ({name} {metadata.version(name)})"} if name else {}
        batches = Counted(peer.batches(job))
        for line in sys.stdin:
            said = answer(json.loads(line), batches, look, touch if spec["peer"] == "ready" else idle)
            said |= {"num_images": batches.num_images}
            print(json.dumps({**said, **look.facts(), **job.setting, **version}), file=channel, flush=True)
    except Exception as fault:
        traceback.print_exc()
        print(json.dumps({"failure": f"{type(fault).__name__}: {fault}"}), file=channel, flush=True)
    channel.flush()
    os._exit(0)  # without waiting for threads and processes of the loader: the parent process ends them


if __name__ == "__main__":
    main()
