"""Measures the unshared memory of workers and of the main process for a dataset that is a list of a million strings.

Compares torch's own workers with slipstream's, after every epoch. When a worker reads a string, Python changes the
string's reference count, so the memory page is copied into the worker. The benchmark tests whether slipstream's workers
need more memory than torch's. Writes benchmarks/results/worker_memory.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from page import machine, write_page

HERE = Path(__file__).parent
BATCH, WORKERS, EPOCHS = 4096, 2, 3
OURS = f"workers={WORKERS},buffer_reuse,decode_cache,fast_decode,fast_resize,fast_arrays"


def run_epochs(kind: str, num_samples: int) -> None:
    """Runs the epochs in this process, and prints the bytes of all processes after every epoch."""
    import psutil
    import torch
    from torch.utils.data import DataLoader, Dataset

    from recipes import parse_recipe
    from slipstream.seams.patching import Patches
    from slipstream.techniques._core.apply_recipe import apply_recipe

    class Names(Dataset[Any]):
        def __init__(self) -> None:
            self.names = [f"/data/photographs/a-class/{number:09d}.jpg" for number in range(num_samples)]

        def __len__(self) -> int:
            return len(self.names)

        def __getitem__(self, index: int) -> int:
            return len(self.names[index])

    faults: list[str] = []

    def complain(seam: str, fault: BaseException) -> None:
        faults.append(f"{seam}: {fault!r}")

    more: dict[str, Any] = {}
    if kind == "ours":
        context = apply_recipe(parse_recipe(OURS), Patches(complain, torch.compiler.is_dynamo_compiling), complain)
        faults += context.declined
    else:
        more = {"num_workers": WORKERS, "persistent_workers": True}
    torch.set_num_threads(1)
    loader = DataLoader(Names(), batch_size=BATCH, shuffle=True, **more)
    main, told = psutil.Process(), []
    before = main.memory_full_info().uss
    for _ in range(EPOCHS):
        iterator = iter(loader)
        for _ in range(len(loader) - 1):
            next(iterator)
        workers = [
            child.memory_full_info().uss for child in main.children()
        ]  # All batches except the last one have been read.
        told.append([main.memory_full_info().uss, *workers])
        next(iterator, None)
    assert not faults and all(len(one) == 1 + WORKERS for one in told), (faults, told)
    print(json.dumps({"before": before, "epochs": told}))


def measure(kind: str, num_samples: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        paths = [str(HERE.parent / "src"), str(HERE), os.environ.get("PYTHONPATH", "")]
        own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "SLIPSTREAM_CACHE": cache}
        command = [sys.executable, __file__, "--ride", kind, "--samples", str(num_samples)]
        done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--ride", dest="kind", choices=["torch", "ours"], help="used by this script itself")
    options = parser.parse_args()
    if options.kind:
        run_epochs(options.kind, options.samples)
        return
    lines = ["| unshared MB | epoch | main process | workers | together |", "|---|---:|---:|---:|---:|"]
    last = {}
    head = machine()
    for kind, label in (("torch", "torch's workers"), ("ours", "slipstream's workers")):
        found = measure(kind, options.samples)
        for number, (first, *workers) in enumerate(found["epochs"], 1):
            last[kind] = (first + sum(workers)) / 1e6
            cells = [f"{value / 1e6:,.0f}" for value in (first, sum(workers), first + sum(workers))]
            lines.append(f"| {label} | {number} | " + " | ".join(cells) + " |")
    text = f"""# Memory of workers on a list of strings

{head}

{options.samples:,} strings in a list, shuffled, batches of {BATCH:,}, {WORKERS} persistent workers. In the second group
of rows, the script has no workers of its own and runs with `{OURS}`. Memory that a process shares with no other (USS).

{chr(10).join(lines)}

After {EPOCHS} epochs, slipstream's workers take {last["ours"] / last["torch"]:.2f} times as much memory.
"""
    write_page("worker_memory", text)


if __name__ == "__main__":
    main()
