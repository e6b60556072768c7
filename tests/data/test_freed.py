from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest
import torch

from slipstream.data.freed import keep_freed, return_freed


def num_faults() -> int:
    import resource

    samples = [torch.zeros(150_000) for _ in range(32)]
    del samples
    start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        samples = [torch.zeros(150_000) for _ in range(32)]
        del samples
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_memory_of_the_last_batch_is_there_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        is_kept = keep_freed()
        os.write(writing, f"{is_kept} {num_faults()}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    said, faults = os.read(reading, 100).decode().split()
    os.close(reading)
    os.close(writing)
    assert said == "True" and int(faults) < 5000, "19 MB are 4,700 pages, five times"


def test_settings_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TOP_PAD_", "1000000")
    assert not keep_freed()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_once_memory_is_short_what_is_freed_goes_back_to_the_system() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        keep_freed()
        samples = [torch.zeros(1_000_000) for _ in range(16)]
        del samples
        return_freed()
        before = num_pages()
        sample = torch.zeros(1_000_000)
        with_it = num_pages()
        del sample
        os.write(writing, f"{with_it - before} {num_pages() - before}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    with_it, after = map(int, os.read(reading, 100).decode().split())
    os.close(reading)
    os.close(writing)
    assert with_it >= 4_000_000 // 4096 and after == 0, "of address space: a limit counts it"


def num_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0])
