from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys

import pytest

from slipstream.data.transport.malloc import keep_freed

KEPT = """
import resource
from slipstream.data.transport.malloc import keep_freed

is_kept = keep_freed()
faults = []
for _ in range(6):
    samples = [bytearray(600_000) for _ in range(32)]
    del samples
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(is_kept, faults[-1] - faults[0])
"""

RETURNED = """
from slipstream.data.transport.malloc import keep_freed, return_freed

def num_pages():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0])

keep_freed()
num_pages()
samples = [bytearray(4_000_000) for _ in range(16)]
del samples
return_freed()
before = num_pages()
sample = bytearray(4_000_000)
with_it = num_pages()
del sample
print(with_it - before, num_pages() - before)
"""


def said_by(script: str) -> list[str]:
    """Runs in a separate process, because settings of the heap cannot be undone."""
    ours = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_kept_for_the_next_batch() -> None:
    is_kept, faults = said_by(KEPT)
    assert is_kept == "True" and int(faults) < 5000, "19 MB are 4,700 pages, five times"


def test_settings_of_the_user_are_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TOP_PAD_", "1000000")
    assert not keep_freed()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_return_freed_returns_memory_to_the_system() -> None:
    with_it, after = map(int, said_by(RETURNED))
    assert with_it >= 4_000_000 // resource.getpagesize() and after < 100, "of address space: a limit counts it"
