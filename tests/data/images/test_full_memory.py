"""Full shared memory, tested with a small file system in a separate mount namespace."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

SCRIPT = """
import subprocess, torch
from torch.utils.data import DataLoader
from slipstream.records import Choice, Recipe
from slipstream.seams.patching import Patches
from slipstream.techniques._core.apply_recipe import apply_recipe

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return torch.full((750_000,), float(index))

def play():
    iterator = iter(DataLoader(Rows(), 1, num_workers=1))
    try:
        for number, batch in enumerate(iterator):
            assert bool((batch == number).all())
        return "went through"
    except RuntimeError as fault:
        return "".join(part for part in str(fault).splitlines()[-1] if not part.isdigit()).partition("<")[0]
    finally:
        iterator._shutdown_workers()

for size in ("8m", "24m"):
    subprocess.run(["mount", "-o", f"remount,size={size}", "/dev/shm"], check=True)
    print(play())
    patches = Patches(lambda seam, fault: print(seam, fault), lambda: False)
    apply_recipe(Recipe((Choice("buffer_reuse", True),)), patches, lambda name, fault: print(name, fault))
    print(play())
    patches.close()
"""


def test_full_shared_memory_fails_as_torch_fails() -> None:
    inside = 'mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$0" -c "$1"'
    command = ["unshare", "-Urm", "sh", "-c", inside]
    if shutil.which("unshare") is None or subprocess.run([*command, "true", ""], capture_output=True).returncode:
        pytest.skip("this system gives no namespaces")
    ran = subprocess.run([*command, sys.executable, SCRIPT], capture_output=True, text=True, timeout=60)
    small, small_ours, large, large_ours = ran.stdout.splitlines()
    assert "unable to" in small and small_ours == small, ran.stdout
    assert large == large_ours == "went through", ran.stdout + ran.stderr
