"""What holds for all tests: they see the same machine and the same environment variables on every host, and a test
that leaves a hook in torch fails.

A test that needs other facts about the machine passes them to the function that it tests (`made_environment`), or
patches them. A test that starts processes must assert what holds on every machine, since these processes see the host.
`make test-hosts` runs the tests on one core and with older instruction sets.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import slipstream
import slipstream.machine.environment
from slipstream.machine import free_memory
from slipstream.machine.cgroups import CgroupLimits, read_limits
from slipstream.recipe import staleness

# Variables of the user's shell that change what the tests observe. ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA and
# CUDA_VISIBLE_DEVICES stay: they hide parts of the machine.
_CHANGING = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "MALLOC_", "GLIBC_TUNABLES", "PYTORCH_", "TORCH_LOGS", "TORCHINDUCTOR_"),
    *("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_", "PYTHONHASHSEED", "WANDB_", "MLFLOW_", "NEPTUNE_", "COMET_"),
    *("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CI", "SLIPSTREAM_DISABLE", "SLIPSTREAM_CACHE"),
)
for _name in [name for name in os.environ if name.startswith(_CHANGING)]:
    del os.environ[_name]

# Caches of this run only, removed at its end. The compiler's cache of the user must not be used: its key leaves out
# the instruction set, so kernels of another run may not compile here.
_CACHE = tempfile.TemporaryDirectory(prefix="slipstream-tests-")
os.environ["SLIPSTREAM_CACHE"] = os.path.join(_CACHE.name, "slipstream")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(_CACHE.name, "inductor")

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
    """The file of a function's code. The name is not enough, because functools.wraps copies names.

    By its file, a function that dynamo patched is told from one that slipstream patched.
    """
    return getattr(getattr(value, "__code__", None), "co_filename", "")


# `make test-hosts` sets another number to show that no test depends on it.
_NUM_CORES = int(os.environ.pop("SLIPSTREAM_TEST_CORES", "2"))
_MEMORY_BYTES = 16 << 30


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores and 16 GiB, half of them free, without limits of a container, in the process of the tests."""
    memory = psutil.virtual_memory()._replace(total=_MEMORY_BYTES, available=_MEMORY_BYTES // 2)
    cores = set(range(_NUM_CORES))
    monkeypatch.setattr(os, "cpu_count", lambda: _NUM_CORES)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores, raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: _NUM_CORES)
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: sorted(cores), raising=False)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    for module in (free_memory, slipstream.machine.environment, staleness):
        monkeypatch.setattr(module, "read_limits", _read_limits)


def _read_limits(root: Path = Path("/")) -> CgroupLimits:
    """The limits in files that a test made. The host appears to have none."""
    return CgroupLimits() if root == Path("/") else read_limits(root)


def _own_finders() -> list[object]:
    """Finders of imports that this project installed. Some libraries install theirs for good when they are imported."""
    return [finder for finder in sys.meta_path if type(finder).__module__.startswith("slipstream.")]


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before, finders = _patched_places(), _own_finders()
    yield
    after = _patched_places()
    assert after.get("optimizer hooks") == before.get("optimizer hooks", (0, 0)) or not before, "a hook was left"
    ours = [place for place, value in after.items() if _file(value).startswith(_OURS)]
    assert not ours, f"left behind: {ours}"
    assert _own_finders() == finders, "a finder was left on sys.meta_path"


@pytest.fixture
def survivors() -> Callable[[list[psutil.Process]], list[psutil.Process]]:
    """The processes that still run after a while: a worker of a loader looks for its parent every five seconds only.
    One that has ended, and that init has not collected yet because the machine is busy, does not run."""

    def find(processes: list[psutil.Process]) -> list[psutil.Process]:
        _, left = psutil.wait_procs(processes, timeout=15)
        return [process for process in left if not _has_ended(process)]

    return find


def _has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
