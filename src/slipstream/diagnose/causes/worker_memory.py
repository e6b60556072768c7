"""Worker processes copy the memory pages of the dataset's Python objects, although they only read the objects. This is
a risk of running out of memory more than a loss of time.
"""

from __future__ import annotations

from slipstream.diagnose.input_path import data_site
from slipstream.numbers import in_bytes, plural
from slipstream.records import Finding, LargeContainer, Loader, Session, Summary, WorkerMemory

LEAST_GROWTH = 4_000_000  # Bytes per worker. Smaller growth comes from buffers that reach their final size.
FEWEST_BATCHES = 4


def find(session: Session, _summary: Summary) -> list[Finding]:
    return [
        finding
        for loader in session.loaders
        if loader.container and (finding := _of_loader(session, loader, loader.container))
    ]


def _of_loader(session: Session, loader: Loader, container: LargeContainer) -> Finding | None:
    if loader.start_method != "fork":  # A spawned worker has a full copy from the beginning.
        return None
    seen = [one for one in session.worker_memory if one.loader == loader.ident and one.num_batches >= FEWEST_BATCHES]
    grown = [one for one in seen if _growth(one) >= LEAST_GROWTH]
    if not grown:
        return None
    worst = max(grown, key=_growth)
    growth, num_batches = _growth(worst), worst.num_batches
    return Finding(
        cause="worker_memory",
        title="Workers copy the dataset's Python objects",
        evidence=f"A worker's own memory grew by {in_bytes(growth)} over "
        f"{plural(num_batches, 'batch', 'es')} ({in_bytes(growth / num_batches)} a batch). "
        f"{container.name} of the dataset is a {container.kind} of "
        f"{container.num_objects:,} {container.element}: reading one writes its reference count, "
        "and its page is copied.",
        predicted_gain=1.0,
        change=_change(container),
        site=data_site(loader),
        advice=f"In the end each of {plural(loader.num_workers, 'worker')} has its own copy, of about "
        f"{in_bytes(container.num_bytes)}.",
    )


def _growth(memory: WorkerMemory) -> int:
    return memory.last_bytes - memory.first_bytes


def _change(container: LargeContainer) -> str:
    name = container.name.rpartition(".")[2]
    if container.element in ("str", "bytes"):
        return f'self.{name} = np.array({name}, dtype="{"S" if container.element == "bytes" else "U"}")'
    if container.element in ("int", "float"):
        return f"self.{name} = np.array({name})"
    return f"keep {name} in NumPy arrays, tensors or an Arrow table: one object, not {container.num_objects:,}"
