"""Makes the memory allocator keep freed memory instead of returning it to the system and requesting it again.

Helps on the CPU. By default each large tensor gets a new mapping at every step, and the system must provide and zero
its pages again. Hurts where memory is short, because other programs cannot use the memory that is kept. CUDA's
allocator keeps freed memory by itself. For that allocator there is the technique `expandable_segments`.
"""

from __future__ import annotations

import ctypes.util
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, already, no
from slipstream.techniques._core.observation import Observation

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext

CARD = Card(
    title="Memory kept by the allocator",
    seam="process",
    causes=(),
    numerics="identical",
    memory="more",
    # The initial layout of the heap decides, for the life of the process, how many pages each step requests.
    is_ground=True,
)
VALUES = ("keep", "huge_pages", "jemalloc", "tcmalloc")

# By default glibc creates a new mapping for every block above a threshold (128 KiB to 32 MiB) and soon returns free
# memory of its heap. Each step then requests the pages of its tensors again. With these settings blocks of up to 1 GiB
# stay on the heap, and the heap keeps up to 8 GiB.
_KEEP = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_TOP_PAD_": str(2**26),
}
_HUGE = "glibc.malloc.hugetlb=1"  # With this setting glibc 2.35 and newer requests pages of 2 MiB.
_LIBRARIES = {"jemalloc": "jemalloc", "tcmalloc": "tcmalloc_minimal"}


def applies(observation: Observation) -> Answer:
    if observation.device != "cpu":
        return already(f"the allocator of {observation.device} already keeps freed memory")
    if any(name in os.environ.get("LD_PRELOAD", "") for name in ("jemalloc", "tcmalloc", "mimalloc")):
        return already("another allocator is preloaded already")
    if not settings(observation):
        return no("the C library is not glibc, and neither jemalloc nor tcmalloc is installed")
    return YES


def settings(observation: Observation) -> list[Setting]:
    found: list[Setting] = []
    if platform.libc_ver()[0] == "glibc" and not any(name in os.environ for name in _KEEP):
        found = ["huge_pages", "keep"] if _has_huge_pages() else ["keep"]
    return found + [name for name, library in _LIBRARIES.items() if _find(library)]


def environment(setting: Setting) -> dict[str, str]:
    """Returns the variables that must be set when the process starts. If the user has set one of the two lists
    (LD_PRELOAD, GLIBC_TUNABLES), our entry is appended to it."""
    if setting in _LIBRARIES:
        return {"LD_PRELOAD": _joined(os.environ.get("LD_PRELOAD", ""), _path(str(setting)), ":")}
    if setting == "huge_pages":
        return {**_KEEP, "GLIBC_TUNABLES": _joined(os.environ.get("GLIBC_TUNABLES", ""), _HUGE, ":")}
    return dict(_KEEP)


def apply(context: ApplyContext, setting: Setting) -> None:
    """Reports whether the variables are set. Once the process runs, the allocator can no longer be changed."""
    wanted = environment(setting)
    if all(os.environ.get(name) == value for name, value in wanted.items()):
        context.changed(" ".join(f"{name}={value}" for name, value in wanted.items()))
    else:
        context.decline(f"{' '.join(wanted)} must be in the environment before the process starts")


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    words = " ".join(f"{name}={value}" for name, value in environment(setting).items())
    reason = "the allocator reads the environment before Python starts: write these variables before the command"
    return [Edit("allocator", "by_hand", None, text=words, reason=reason)]


def _joined(before: str, part: str, separator: str) -> str:
    return before if part in before.split(separator) else separator.join(filter(None, (before, part)))


def _has_huge_pages() -> bool:
    try:
        offered = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return False
    version = tuple(int(part) for part in platform.libc_ver()[1].split(".")[:2] if part.isdigit())
    return "[never]" not in offered and version >= (2, 35)


def _find(library: str) -> str | None:
    return ctypes.util.find_library(library)


def _path(setting: str) -> str:
    return _find(_LIBRARIES[setting]) or f"lib{_LIBRARIES[setting]}.so"
