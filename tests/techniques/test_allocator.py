"""The allocator's environment variables extend those of the user, and glibc obeys them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from slipstream.techniques import allocator, expandable_segments
from slipstream.techniques._core.observation import Observation
from slipstream.testing.made_sessions import made_environment, made_model, made_session

# Blocks of 64 MiB, the size of a large activation, are allocated, written and freed repeatedly. Huge pages are off:
# where the system always uses them, a block takes 32 page faults instead of 16,384.
BLOCKS = """
import ctypes, resource
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE
for turn in range(20):
    if turn == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = bytearray(b"x") * 2**26
    del block
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def seen_on(device: str) -> Observation:
    environment, model = made_environment(device=device), made_model(device)
    return Observation(msgspec.structs.replace(made_session(), environment=environment, models=[model]))


@pytest.mark.skipif("keep" not in allocator.settings(seen_on("cpu")), reason="not glibc")
def test_freed_blocks_cause_no_new_page_faults() -> None:
    def count_faults(environment: dict[str, str]) -> int:
        command = [sys.executable, "-S", "-c", BLOCKS]
        return int(subprocess.run(command, env=os.environ | environment, capture_output=True, check=True).stdout)

    bare = count_faults({})
    for setting in allocator.settings(seen_on("cpu")):
        assert count_faults(allocator.environment(setting)) < bare / 10, setting


def test_variables_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=0")
    wanted = "glibc.malloc.check=0:glibc.malloc.hugetlb=1"
    assert allocator.environment("huge_pages")["GLIBC_TUNABLES"] == wanted
    monkeypatch.setenv("GLIBC_TUNABLES", wanted)  # as in the trial's process
    assert allocator.environment("huge_pages")["GLIBC_TUNABLES"] == wanted


def test_a_running_process_declines(applied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with applied(("allocator", "keep")) as context:
        pass
    assert "before the process starts" in context.declined[0]
    for name, value in allocator.environment("keep").items():
        monkeypatch.setenv(name, value)
    with applied(("allocator", "keep")) as context:
        pass
    assert context.changes and not context.declined


def test_does_not_apply_to_accelerators() -> None:
    assert allocator.applies(seen_on("cuda:0")).reason == "the allocator of cuda already keeps freed memory"


def test_expandable_segments(applied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the model is on cpu" in expandable_segments.applies(seen_on("cpu")).reason
    assert expandable_segments.applies(seen_on("cuda:0")).is_yes
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    wanted = "max_split_size_mb:64,expandable_segments:True"
    assert set(expandable_segments.environment(True).values()) == {wanted}
    with applied("expandable_segments") as context:
        pass
    assert context.declined == ["expandable_segments: there is no CUDA device here"]
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", wanted)  # as in the trial's process
    assert set(expandable_segments.environment(True).values()) == {wanted}
    assert expandable_segments.applies(seen_on("cuda:0")).reason == "the environment sets expandable_segments already"
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync")
    assert "no segments" in expandable_segments.applies(seen_on("cuda:0")).reason
