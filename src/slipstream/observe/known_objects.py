"""What the process has already reported about the script: its loaders, models and optimizers, source lines and notes. A
source line or note is written only once."""

from __future__ import annotations

from slipstream.observe.message_queue import MessageQueue
from slipstream.records import Loader, Met, Model, Optimizer, Site, Told


class KnownObjects:
    def __init__(self, queue: MessageQueue) -> None:
        self._queue = queue
        self._subjects: dict[tuple[type, int], Loader | Model | Optimizer] = {}
        self._places: dict[Site, int] = {}
        self._notes: set[str] = set()

    def meet(self, subject: Loader | Model | Optimizer) -> None:
        self._subjects[(type(subject), subject.ident)] = subject
        if isinstance(subject, Loader):
            self._queue.write(Met(loader=subject))
        elif isinstance(subject, Model):
            self._queue.write(Met(model=subject))
        else:
            self._queue.write(Met(optimizer=subject))

    def place(self, site: Site | None) -> int:
        if site is None:
            return -1
        ident = self._places.get(site)
        if ident is None:
            ident = self._places[site] = len(self._places)
            self._queue.write(Met(site=site, site_ident=ident))
        return ident

    def note(self, sentence: str) -> None:
        if sentence not in self._notes:
            self._notes.add(sentence)
            self._queue.write(Told(note=sentence))

    def loader(self, ident: int) -> Loader | None:
        facts = self._subjects.get((Loader, ident))
        return facts if isinstance(facts, Loader) else None

    def models(self) -> list[Model]:
        return [subject for subject in self._subjects.values() if isinstance(subject, Model)]

    def count_prefetched(self, loader: int) -> int:
        """Returns the number of batches that the loader's workers may already have prefetched. Draining prefetched
        batches takes no time."""
        facts = self.loader(loader)
        return facts.num_workers * (facts.prefetch_factor or 2) if facts is not None else 0
