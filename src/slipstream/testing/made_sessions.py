"""Synthetic sessions for tests of code that reads sessions. A synthetic session is a training with chosen times, in the
form that a trial would have recorded. It simulates the form of the records and not a machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from slipstream.records import (
    KINDS,
    Anatomy,
    Block,
    BlockKind,
    Ending,
    Environment,
    Evaluation,
    Event,
    Fetch,
    Footprint,
    Growth,
    Length,
    LineBytes,
    Loader,
    LoadSample,
    Memory,
    Model,
    ModuleBytes,
    Moment,
    Operator,
    Optimizer,
    Rehearsal,
    Session,
    Site,
    StackCount,
    Step,
    TensorFacts,
    TorchFacts,
)

FILE = "/home/ada/project/train.py"
LOADER_SITE = Site(FILE, 31, "loader = DataLoader(photos, batch_size=32, shuffle=True)", "main")
GETITEM_SITE = Site(FILE, 12, "def __getitem__(self, index):", "__getitem__")
MODEL_SITE = Site(FILE, 40, "loss = criterion(model(x), y)", "main")
OPTIMIZER_SITE = Site(FILE, 33, "optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)", "main")
FIRST_NS = 1_000_000_000


def made_environment(num_usable: float = 2.0, num_threads: int = 2, device: str = "cpu", **facts: Any) -> Environment:
    torch = TorchFacts(
        version="2.13.0",
        cpu_capability="AVX2",
        num_threads=num_threads,
        num_interop_threads=1,
        accelerator="" if device == "cpu" else device.split(":")[0],
        accelerator_build="",
        device=device,
        has_fast_bf16=False,
        has_fast_fp16=False,
        has_tf32=False,
        matmul_precision="highest",
        cudnn_benchmark=False,
        deterministic=False,
    )
    return Environment(
        system="Linux",
        python="3.11.7",
        slipstream="0.1.0",
        cpu="made",
        num_cores=max(1, int(num_usable)),
        num_logical=max(1, int(num_usable)),
        num_usable=num_usable,
        memory_bytes=16 * 2**30,
        memory_limit_bytes=None,
        shm_bytes=8 * 2**30,
        shm_free_bytes=8 * 2**30,
        disk_kind="ssd",
        load=0.1,
        torch=msgspec.structs.replace(torch, **facts),
    )


def made_loader(num_workers: int = 0, **facts: Any) -> Loader:
    loader = Loader(
        ident=0,
        site=LOADER_SITE,
        class_name="DataLoader",
        dataset_name="Photos",
        num_workers=num_workers,
        batch_size=32,
        prefetch_factor=2 if num_workers else None,
        persistent_workers=num_workers > 0,
        pin_memory=False,
        is_iterable=False,
        num_batches=1000,
        num_samples=32_000,
        start_method="fork" if num_workers else "",
        getitem_site=GETITEM_SITE,
        tensor_facts=[TensorFacts("[0]", [32, 100], "float32", "cpu", 12_800)],
    )
    return msgspec.structs.replace(loader, **facts)


def made_model(device: str = "cpu", **facts: Any) -> Model:
    model = Model(0, "Net", MODEL_SITE, 1_000_000, 4_000_000, ["float32"], device, False, 12)
    return msgspec.structs.replace(model, **facts)


def made_optimizer(device: str = "cpu", **facts: Any) -> Optimizer:
    return msgspec.structs.replace(
        Optimizer(0, "AdamW", OPTIMIZER_SITE, 20, 1_000_000, None, None, True, device), **facts
    )


def made_anatomy(operators: Mapping[str, tuple[int, float]], **facts: Any) -> Anatomy:
    """Returns an anatomy with these operators. The values are the number of calls and the milliseconds of all calls
    together."""
    listed = [
        Operator(name, "contraction" if "mm" in name or "conv" in name else "elementwise", count, total, total)
        for name, (count, total) in operators.items()
    ]
    classes: dict[str, float] = {}
    for operator in listed:
        classes[operator.operator_class] = classes.get(operator.operator_class, 0.0) + operator.self_cpu_ms
    anatomy = Anatomy(sum(classes.values()), classes, {}, sum(one.count for one in listed), 0, listed, [])
    return msgspec.structs.replace(anatomy, **facts)


def made_stack(stage: str, line: int, count: int, **facts: Any) -> StackCount:
    """Returns a counted stack in a block of kind `watch`.

    By default the stack is in the main process, in the phase `input` and inside a call into C.
    """
    stack = StackCount(
        "main", "input", "other", FILE, line, "__getitem__", "call(...)", "train.py:__getitem__", True, 1, count
    )
    return msgspec.structs.replace(stack, stage=stage, **facts)


class _Tape:
    """Writes blocks one after the other. Its clock moves only when a step or a batch is written."""

    def __init__(self, loader: Loader | None, phases: Mapping[str, float], work_ms: float, cpu_share: float) -> None:
        self.loader, self.work_ms, self.cpu_share = loader, work_ms, cpu_share
        self.phases = dict(phases)
        self.now_ns = FIRST_NS
        self.blocks: list[Block] = []
        self.steps: list[Step] = []
        self.events: list[Event] = []
        self.fetches: list[Fetch] = []

    def steps_of(self, kind: BlockKind, num_steps: int, phases: Mapping[str, float], cpu_ms: float = 0.0) -> None:
        start_ns = self.now_ns
        for _ in range(num_steps):
            self._step(len(self.blocks), phases, kind == "kept")
        self.blocks.append(Block(len(self.blocks), kind, start_ns, self.now_ns, cpu_ns=int(cpu_ms * num_steps * 1e6)))

    def _step(self, block: int, phases: Mapping[str, float], kept: bool) -> None:
        start_ns, step_ms = self.now_ns, sum(phases.values())
        self.now_ns += int(step_ms * 1e6)
        if self.loader:
            waited_ns = start_ns + int(phases.get("input", 0.0) * 1e6)
            cpu_ns = 0 if self.loader.num_workers or kept else int(self.work_ms * self.cpu_share * 1e6)
            ident = self.loader.ident
            self.events.append(Event("input", ident, start_ns, waited_ns, samples=32, cpu_ns=cpu_ns, kept=kept))
            if not kept:
                self._fetch(start_ns)
        self.steps.append(
            Step(
                len(self.steps),
                block,
                start_ns,
                self.now_ns,
                step_ms,
                dict(phases),
                32,
                int(self.loader is not None),
                1,
                1,
                1,
            )
        )

    def _fetch(self, start_ns: int) -> None:
        assert self.loader is not None
        if not self.loader.num_workers:
            return  # Without workers, the event of kind `input` contains the fetch.
        worker = len(self.fetches) % self.loader.num_workers
        wall_ns = int(self.work_ms * 1e6)
        self.fetches.append(Fetch(self.loader.ident, worker, start_ns, wall_ns, int(wall_ns * self.cpu_share), 32))

    def try_ceilings(self, phases: Mapping[str, float], cpu_ms: float | None) -> None:
        self.steps_of("kept", 20, phases, sum(phases.values()) * 2 if cpu_ms is None else cpu_ms)
        if self.loader:
            self.drain(24)

    def drain(self, num_batches: int) -> None:
        assert self.loader is not None
        start_ns, batch_ns = self.now_ns, int(self.work_ms * 1e6 / max(1, self.loader.num_workers))
        for _ in range(num_batches):
            self._fetch(self.now_ns)
            self.now_ns += batch_ns
        self.blocks.append(
            Block(len(self.blocks), "drain", start_ns, self.now_ns, [batch_ns] * num_batches, self.loader.ident)
        )


def made_session(
    *,
    input_ms: float = 0.5,
    transfer_ms: float = 0.0,
    forward_ms: float = 10.0,
    backward_ms: float = 20.0,
    optimizer_ms: float = 1.0,
    other_ms: float = 0.5,
    num_steps: int = 60,
    num_workers: int = 0,
    work_ms: float | None = None,
    cpu_share: float = 1.0,
    compute_cpu_ms: float | None = None,
    starved: float = 1.0,
    has_loader: bool = True,
    stacks: Sequence[StackCount] = (),
    environment: Environment | None = None,
    loader: Loader | None = None,
    model: Model | None = None,
    optimizer: Optimizer | None = None,
    evaluations: Sequence[Evaluation] = (),
    memory: Sequence[Memory] = (),
    anatomy: Anatomy | None = None,
    rehearsals: Sequence[Rehearsal] = (),
    length: Length | None = None,
    is_short: bool = False,
) -> Session:
    """Returns the session of a training with these milliseconds per step.

    It has a warm-up, a block of kind `watch`, a block of kind `kept` and, with a loader, a block of kind `drain`.
    `work_ms` is the time that one process works on a batch; by default it is `input_ms`. `starved` is the factor by
    which the computation takes longer in the watched steps than in the block `kept`. With `is_short` the script ended
    within its warm-up.
    """
    environment = environment or made_environment()
    loader = (loader or made_loader(num_workers)) if has_loader else None
    resting = {"transfer": transfer_ms, "forward": forward_ms, "backward": backward_ms, "optimizer": optimizer_ms}
    watched = {"input": input_ms, **{phase: ms * starved for phase, ms in resting.items()}, "other": other_ms}
    tape = _Tape(loader, watched, input_ms if work_ms is None else work_ms, cpu_share)
    tape.steps_of("warmup", 8, watched)
    if not is_short:
        tape.steps_of("watch", num_steps, watched)
        tape.try_ceilings({"input": 0.0, **resting, "other": other_ms}, compute_cpu_ms)
    device = environment.torch.device if environment.torch else "cpu"
    seen = _session(environment, loader, model or made_model(device), optimizer or made_optimizer(device), tape)
    return msgspec.structs.replace(
        seen,
        evaluations=list(evaluations),
        stacks=list(stacks),
        memory=list(memory),
        anatomy=anatomy,
        rehearsals=list(rehearsals),
        length=length,
    )


def _session(
    environment: Environment, loader: Loader | None, model: Model, optimizer: Optimizer, tape: _Tape
) -> Session:
    return Session(
        command="check",
        script=["train.py"],
        cwd="/home/ada/project",
        created="2026-01-01T00:00:00",
        environment=environment,
        ending=Ending("stopped", 0, 30.0),
        loaders=[loader] if loader else [],
        models=[model],
        optimizers=[optimizer],
        sites=[LOADER_SITE, MODEL_SITE, OPTIMIZER_SITE],
        events=tape.events,
        blocks=tape.blocks,
        steps=tape.steps,
        fetches=tape.fetches,
    )


def with_steps_of(session: Session, times_ms: Sequence[float]) -> Session:
    """Returns the session with watched steps of these lengths, and no other watched steps."""
    watched = {block.index for block in session.blocks if block.kind == "watch"}
    times = iter(times_ms)
    steps: list[Step] = []
    for step in session.steps:
        if step.block not in watched:
            steps.append(step)
        elif (step_ms := next(times, None)) is not None:
            phases = {phase: ms * step_ms / step.step_ms for phase, ms in step.phases.items()}
            steps.append(msgspec.structs.replace(step, step_ms=step_ms, phases=phases))
    return msgspec.structs.replace(session, steps=steps)


def with_load(session: Session, cores: Sequence[float]) -> Session:
    """Returns the session with a sample of the load of other programs for every step.

    Other programs used these numbers of cores during the first watched steps, and no core during all other steps. If
    other programs used a share s of the cores, the step takes 1 / (1 - s) times as long.
    """
    watched = {block.index for block in session.blocks if block.kind == "watch"}
    loads, usable = iter(cores), session.environment.num_usable
    steps: list[Step] = []
    samples: list[LoadSample] = []
    for step in session.steps:
        load = next(loads, 0.0) if step.block in watched else 0.0
        slower = 1 / (1 - load / usable)
        phases = {phase: ms * slower for phase, ms in step.phases.items()}
        steps.append(msgspec.structs.replace(step, step_ms=step.step_ms * slower, phases=phases))
        samples.append(LoadSample(step.start_ns, step.end_ns, load))
    return msgspec.structs.replace(session, steps=steps, foreign_load=samples)


def made_footprint(batch_size: int, activations: int) -> Footprint:
    """Returns the memory of a step of a model with six blocks. The peak is in the backward pass, at a line of
    net.py."""
    site = Site(FILE.replace("train", "net"), 14, "hidden = self.up(self.norm(states))", "forward")
    weights = {"parameters": 4_000_000, "optimizer_state": 8_000_000}
    kinds = {**dict.fromkeys(KINDS, 0), **weights, "gradients": 4_000_000, "activations": activations}
    blocks = [
        ModuleBytes(f"blocks.{index}{inner}", name, {"activations": activations // 12}, 1_000_000 // 6)
        for index in range(6)
        for inner, name in (("", "Block"), (".up", "Linear"))
    ]
    course = ((0.0, "other", 0.0), (1.0, "forward", 0.5), (3.0, "backward", 1.0), (6.0, "backward", 0.4))
    moments = [
        Moment(at, phase, [4_000_000, 8_000_000, 4_000_000, 0, int(share * activations), 0, 0])
        for at, phase, share in (*course, (9.0, "optimizer", 0.0))
    ]
    return Footprint(
        device="cpu",
        num_samples=batch_size,
        batch_size=batch_size,
        peak_bytes=sum(kinds.values()),
        peak_ms=3.0,
        peak_phase="backward",
        peak_operator="aten::sum",
        peak_site=site,
        step_ms=10.0,
        kinds=kinds,
        phases={"forward": kinds, "optimizer": weights},
        moments=moments,
        modules=blocks,
        lines=[LineBytes(site, {"activations": activations // 2})],
        growth=Growth(2_000_000, 3, site),
        capacity_bytes=1_000_000_000,
    )
