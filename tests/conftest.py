"""Polices the promise that seams leave nothing behind: a test that leaves a hook in torch fails."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import slipstream

# What tests decode is kept in a folder of theirs, and goes with them.
_CACHE = tempfile.TemporaryDirectory(prefix="slipstream-tests-")
os.environ["SLIPSTREAM_CACHE"] = _CACHE.name

_OURS = str(Path(slipstream.__file__).parent) + os.sep  # not by the name alone: the clone may be called that, too

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background by a shell: children would ignore the Ctrl-C that tests send them.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _patched_places() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    import torch.utils.data
    from torch.optim import optimizer
    from torch.utils.data._utils import fetch, worker
    from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

    owners: list[Any] = [
        torch.nn.Module,
        torch.Tensor,
        torch.autograd,
        torch.utils.data.DataLoader,
        _BaseDataLoaderIter,
        _MultiProcessingDataLoaderIter,
        fetch._MapDatasetFetcher,
        fetch._IterableDatasetFetcher,
        worker,
        torch.optim.Optimizer,
        torch.optim.lr_scheduler.LRScheduler,
    ]
    owners += [sys.modules[name] for name in ("PIL.Image", "PIL.ImageFile") if name in sys.modules]
    if "PIL.ImageFile" in sys.modules:
        owners += [sys.modules["PIL.Image"].Image, sys.modules["PIL.ImageFile"].ImageFile]
    places = {f"{owner!r}.{name}": value for owner in owners for name, value in vars(owner).items() if callable(value)}
    places |= {f"torch.{name}": getattr(torch, name) for name in ("save", "load", "compile", "set_num_threads")}
    places["optimizer hooks"] = (
        len(optimizer._global_optimizer_pre_hooks),
        len(optimizer._global_optimizer_post_hooks),
    )
    return places


def _file(value: Any) -> str:
    """Where a function's code lies: functools.wraps copies names, not code. What dynamo patches is not our affair."""
    return getattr(getattr(value, "__code__", None), "co_filename", "")


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before, finders = _patched_places(), list(sys.meta_path)
    yield
    after = _patched_places()
    assert after.get("optimizer hooks") == before.get("optimizer hooks", (0, 0)) or not before, "a hook was left"
    ours = [place for place, value in after.items() if _file(value).startswith(_OURS)]
    assert not ours, f"left behind: {ours}"
    assert sys.meta_path == finders, "a finder was left on sys.meta_path"
