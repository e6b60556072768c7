"""Checks the seams on one device with a small training: the seams observe the training, do not change its losses, and
are removed afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from slipstream.records import Ending, Seen
from slipstream.trial.lifecycle import TrialSettings, start_run

NUM_STEPS = 12
_KINDS = ("iterator", "input", "forward", "backward", "optimizer")
_WATCHED = ((nn.Module, "__call__"), (torch.Tensor, "to"), (torch.autograd, "backward"), (DataLoader, "__iter__"))


def check_seams(device: str) -> Iterator[tuple[str, bool, str]]:
    """Yields a tuple for each check: its name, whether it holds, and what was observed."""
    yield "torch can use the device", True, _describe(device)
    before = [getattr(owner, name) for owner, name in _WATCHED]
    bare = _train(device)
    trial = start_run(TrialSettings(mode="watch"))
    try:
        watched = _train(device)
    finally:
        trial.leave(Ending("finished", 0, 0.0))
    yield "the losses are the same", bare == watched, f"losses {bare[-1]!r} bare, {watched[-1]!r} watched"
    seen: dict[str, int] = {}
    for _, message in trial.messages:
        for event in message.events if isinstance(message, Seen) else []:
            seen[event.kind] = seen.get(event.kind, 0) + 1
    for kind in (*_KINDS, *(() if device == "cpu" else ("transfer",))):
        yield f"the {kind} seam sees", seen.get(kind, 0) > 0, f"{seen.get(kind, 0)} events in {NUM_STEPS} steps"
    after = [getattr(owner, name) for owner, name in _WATCHED]
    left = trial.patches.leftovers if trial.patches is not None else ["nothing was patched"]
    restored = all(one is other for one, other in zip(before, after, strict=True))
    yield "nothing is left behind", restored and not left, ", ".join(left) or "as before"
    yield "no seam was switched off", not trial.complaints, "; ".join(trial.complaints) or "none"


def _describe(device: str) -> str:
    """Returns the version of torch, the version of CUDA or ROCm that it was built for, and the name of the device.
    Raises an error if torch cannot use the device."""
    torch.ones(2, device=device).sum().item()
    builds = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
    build = ", ".join(f"{name} {version}" for name, version in builds.items() if version)
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else torch.backends.cpu.get_cpu_capability()
    return ", ".join(filter(None, (f"torch {torch.__version__}", build, name)))


def _train(device: str) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(NUM_STEPS * 4, 3, 8, 8), torch.randint(0, 4, (NUM_STEPS * 4,)))
    losses: list[Any] = []
    for images, labels in DataLoader(data, batch_size=4):
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]
