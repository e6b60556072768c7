"""Builds a session from the messages of all processes. The process with the most events counts as the one that trained.
Steps and evaluations are found here; conclusions are not drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from slipstream.observe.source_statements import read_statement
from slipstream.observe.stacks.source_loops import refine
from slipstream.observe.steps import find_steps
from slipstream.records import (
    Anatomy,
    Block,
    BlockEnded,
    Ended,
    Ending,
    Environment,
    Evaluation,
    Event,
    Fetch,
    Flag,
    Footprint,
    Leak,
    Length,
    Loader,
    Memory,
    Message,
    Met,
    Model,
    Optimizer,
    ProcessStarted,
    Rehearsal,
    Seen,
    Session,
    Site,
    StackCount,
    Told,
    TorchFacts,
    TorchProfile,
    Trainer,
    WorkerMemory,
)
from slipstream.seams.user_code import make_site

_MAX_LINES = 3  # number of lines of the training loop that are stored with their full text


class ObservedProcess:
    """Everything that one process reported."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.role = "main"
        self.events: list[Event] = []
        self.fetches: list[Fetch] = []
        self.stacks: Counter[tuple[Any, ...]] = Counter()
        self.memory: list[Memory] = []
        self.loaders: dict[int, Loader] = {}
        self.models: dict[int, Model] = {}
        self.optimizers: dict[int, Optimizer] = {}
        self.sites: dict[int, Site] = {}
        self.blocks: list[Block] = []
        self.notes: list[str] = []
        self.leaks: list[Leak] = []
        self.rehearsals: list[Rehearsal] = []
        self.footprints: list[Footprint] = []
        self.written: list[str] = []
        self.libraries: dict[str, str] = {}
        self.anatomy: Anatomy | None = None
        self.profile: TorchProfile | None = None
        self.torch: TorchFacts | None = None
        self.length: Length | None = None
        self.makes_optimizer = False
        self.flags: list[Flag] = []
        self.trainer: Trainer | None = None
        self.ending: Ending | None = None

    def add(self, message: Message) -> None:
        if isinstance(message, ProcessStarted):
            self.role = message.role
        elif isinstance(message, Seen):
            self._add_seen(message)
        elif isinstance(message, Met):
            self._add_met(message)
        elif isinstance(message, BlockEnded):
            self.blocks.append(message.block)
        elif isinstance(message, Told):
            self._add_told(message)
        elif isinstance(message, Ended):
            self.ending = message.ending

    def _add_seen(self, seen: Seen) -> None:
        self.events += seen.events
        self.fetches += seen.fetches
        self.memory += seen.memory
        for stack in seen.stacks:
            self.stacks[msgspec.structs.astuple(stack)[:-1]] += stack.count

    def _add_met(self, met: Met) -> None:
        if met.loader is not None:
            self.loaders[met.loader.ident] = met.loader
        if met.model is not None:
            self.models[met.model.ident] = met.model
        if met.optimizer is not None:
            self.optimizers[met.optimizer.ident] = met.optimizer
        if met.site is not None:
            self.sites[met.site_ident] = met.site

    def _add_told(self, told: Told) -> None:
        if told.note:
            self.notes.append(told.note)
        self.written += told.written
        self.libraries.update(told.libraries)
        self.anatomy = told.anatomy or self.anatomy
        self.profile = told.profile or self.profile
        self.torch = told.torch or self.torch
        self.length = told.length or self.length
        self.trainer = told.trainer or self.trainer
        self.flags += told.flags
        self.makes_optimizer |= told.makes_optimizer
        self.leaks += told.leaks
        self.rehearsals += told.rehearsals
        self.footprints += [told.footprint] if told.footprint is not None else []


def assemble(
    messages: Iterable[tuple[int, Message]],
    *,
    command: str,
    script: list[str],
    cwd: str,
    created: str,
    environment: Environment,
    ending: Ending,
) -> Session:
    processes: dict[int, ObservedProcess] = {}
    for process, message in messages:
        processes.setdefault(process, ObservedProcess(process)).add(message)
    trainers = [p for p in processes.values() if p.role != "worker"]
    trainer = max(trainers, key=lambda p: len(p.events), default=ObservedProcess(0))
    workers = [p for p in processes.values() if p.role == "worker"]
    steps, evaluations = find_steps(trainer.events, trainer.blocks)
    loaders = _listed(trainer.loaders)
    sites = [*(trainer.sites[ident] for ident in sorted(trainer.sites)), *_hot_lines(trainer)]
    return Session(
        command=command,
        script=script,
        cwd=cwd,
        created=created,
        environment=_with_torch(environment, trainer),
        ending=ending,
        loaders=loaders,
        models=_listed(trainer.models),
        optimizers=_listed(trainer.optimizers),
        makes_optimizer=trainer.makes_optimizer,
        trainer=trainer.trainer,
        flags=trainer.flags,
        sites=sites,
        statements=[one for site in dict.fromkeys(sites) if (one := read_statement(site)) is not None],
        events=sorted(trainer.events, key=lambda event: event.start_ns),
        blocks=trainer.blocks,
        steps=steps,
        evaluations=[_place_evaluation(e, trainer) for e in evaluations],
        fetches=_fetches(trainer, workers, loaders),
        stacks=_add_up([trainer, *workers]),
        memory=trainer.memory,
        leaks=trainer.leaks,
        worker_memory=[told for one in workers if (told := _worker_memory(one)) is not None],
        rehearsals=trainer.rehearsals,
        footprints=trainer.footprints,
        length=trainer.length,
        anatomy=trainer.anatomy,
        torch_profile=trainer.profile,
        notes=_notes(trainer, trainers, workers),
        written=[path for one in processes.values() for path in one.written],
    )


def _worker_memory(worker: ObservedProcess) -> WorkerMemory | None:
    """Returns the worker's memory at its second and its last reading, or None if there are too few readings. The first
    reading is left out, because the first batch allocates buffers and imports modules."""
    readings = worker.memory[1:]
    if len(readings) < 2 or not worker.fetches:
        return None
    first, last = readings[0], readings[-1]
    fetch = worker.fetches[0]
    num_batches = last.step - first.step
    return WorkerMemory(fetch.loader, fetch.worker, num_batches, first.resident_bytes, last.resident_bytes)


def _hot_lines(trainer: ObservedProcess) -> list[Site]:
    """Returns the lines of the training loop with the most stack samples, with their full text. The samples themselves
    contain only the expression."""
    counts: Counter[tuple[str, int, str]] = Counter()
    for stack, count in trainer.stacks.items():
        one = _make_count(stack, count)
        if one.phase == "other" and one.file:
            counts[one.file, one.line, one.function] += count
    return [make_site(*place) for place, _ in counts.most_common(_MAX_LINES)]


def _listed(subjects: dict[int, Any]) -> list[Any]:
    return [subjects[ident] for ident in sorted(subjects)]


def _with_torch(environment: Environment, trainer: ObservedProcess) -> Environment:
    return msgspec.structs.replace(environment, torch=trainer.torch, libraries=trainer.libraries)


def _place_evaluation(evaluation: Evaluation, trainer: ObservedProcess) -> Evaluation:
    """Adds the user's line that called the model during the evaluation, and the line of the training loop that started
    the evaluation."""
    lines: Counter[tuple[int, int]] = Counter()
    for event in trainer.events:
        if event.kind == "forward" and evaluation.start_ns <= event.start_ns < evaluation.end_ns:
            lines[(event.site, event.caller)] += 1
    site, caller = lines.most_common(1)[0][0] if lines else (-1, -1)
    return msgspec.structs.replace(evaluation, site=trainer.sites.get(site), caller=trainer.sites.get(caller))


def _fetches(trainer: ObservedProcess, workers: list[ObservedProcess], loaders: list[Loader]) -> list[Fetch]:
    """Returns all fetches in order. Spawned workers do not know their loader; if only one loader has workers, it is
    taken to be the loader of these fetches."""
    fetches = [fetch for one in (trainer, *workers) for fetch in one.fetches]
    with_workers = [loader.ident for loader in loaders if loader.num_workers]
    if len(with_workers) == 1:
        fetches = [
            msgspec.structs.replace(f, loader=with_workers[0]) if f.worker >= 0 and f.loader < 0 else f for f in fetches
        ]
    return sorted(fetches, key=lambda fetch: fetch.start_ns)


def _add_up(processes: list[ObservedProcess]) -> list[StackCount]:
    totals: Counter[tuple[Any, ...]] = Counter()
    for one in processes:
        totals.update(one.stacks)
    counted = [_make_count(key, count) for key, count in totals.most_common()]
    return [msgspec.structs.replace(stack, stage=refine(stack)) for stack in counted]


def _make_count(key: tuple[Any, ...], count: int) -> StackCount:
    return msgspec.convert([*key, count], StackCount)


def _notes(trainer: ObservedProcess, trainers: list[ObservedProcess], workers: list[ObservedProcess]) -> list[str]:
    notes = [note for one in (*trainers, *workers) for note in one.notes]
    if trainer.role == "child":
        notes.append("the training ran in a process that the script started; that process is the one described here")
    num_trained = sum(any(event.kind == "backward" for event in p.events) for p in trainers)
    if num_trained > 1:
        notes.append(f"{num_trained} processes trained; the busiest one is described here")
    return list(dict.fromkeys(notes))
