"""A session: everything that one command measured and concluded, saved as one file. Reports read only this."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from slipstream.records.anatomy import Anatomy, TorchProfile
from slipstream.records.environment import Environment, IdleGpu, LoadSample, Revision
from slipstream.records.event import Event
from slipstream.records.finding import Bound, Ceilings, Finding
from slipstream.records.fitting import Fitting
from slipstream.records.flag import Flag
from slipstream.records.footprint import Footprint
from slipstream.records.objects import Loader, Model, Optimizer, Trainer
from slipstream.records.race import Tuning
from slipstream.records.rehearsal import Rehearsal
from slipstream.records.site import Site
from slipstream.records.speedtest import SpeedTest
from slipstream.records.stack import StackCount
from slipstream.records.statement import Statement
from slipstream.records.step import Block, Evaluation, Fetch, Step

# Increased when the meaning or the type of a saved field changes. The package `store` upgrades older files.
SCHEMA = 2


class Ending(msgspec.Struct, frozen=True):
    """How the script ended. The descriptions are shown in docs/json.md."""

    reason: Annotated[
        Literal["stopped", "finished", "raised", "interrupted", "killed"],
        Meta(description="`stopped` by slipstream, `finished`, `raised`, `interrupted` or `killed`"),
    ]
    exit_code: Annotated[int, Meta(description="of the script; 0 when slipstream stopped it")]
    seconds: Annotated[float, Meta(description="from start to end")]
    message: Annotated[str, Meta(description="of the script's exception, if it raised")] = ""


class Memory(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Memory in use at the end of a step: resident and on the device, and the number of live tensors if counted. In a
    loader's worker, `step` is the number of batches and `resident_bytes` the private memory."""

    step: int
    time_ns: int
    resident_bytes: int
    device_bytes: int
    num_graphs: int = -1  # live tensors with a grad_fn; -1: not counted
    num_tensors: int = -1


class WorkerMemory(msgspec.Struct, frozen=True):
    """The private memory of one worker process, after one of its first batches and after its last."""

    loader: int
    worker: int
    num_batches: int  # between the two
    first_bytes: int
    last_bytes: int


class Leak(msgspec.Struct, frozen=True):
    """A variable that keeps tensors alive from step to step, and the user's line that fills it."""

    name: str  # "losses", "self.history"
    num_tensors: int
    num_bytes: int = 0
    site: Site | None = None
    has_graph: bool = True  # False: tensors without a graph, in a container that grew until the end
    is_sum: bool = False  # one tensor to which every step adds a term with its graph


class Length(msgspec.Struct, frozen=True):
    """The length of the training, as far as the script states it."""

    num_epochs: int | None = None
    num_steps: int | None = None
    source: str = ""  # "--epochs", "max_iters", "OneCycleLR"
    around: Site | None = None  # a loop of the user that repeats the whole training: folds, seeds


class Summary(msgspec.Struct, frozen=True):
    """The numbers of a typical step, over the watched blocks."""

    num_steps: int  # that the numbers rest on: the undisturbed ones, or all of them if there are none
    step_ms: float  # median
    step_low_ms: float  # 95% interval of the median
    step_high_ms: float
    samples_per_step: float
    samples_per_s: float
    phases: dict[str, float]  # adds up to step_ms
    device_phases: dict[str, float] | None
    bound: Bound
    ceilings: Ceilings
    is_inference: bool = False
    evaluation_share: float | None = None  # of the epoch
    evaluation_note: str = ""
    seconds_left: float | None = None  # of the whole training at this rate
    seconds_best: float | None = None  # the same at the best ceiling
    num_undisturbed: int | None = None  # steps without load of other programs; None: of an older version
    num_disturbed: int = 0  # steps with it
    foreign_cores: float = 0.0  # that other programs used during those, on average
    host_phases: dict[str, float] | None = None  # if `phases` are the device's; adds up to step_ms
    device_idle: dict[str, float] | None = None  # by phase, see `Step.device_idle`


class Session(msgspec.Struct, frozen=True):
    command: str  # check, tune, run, watch, memory
    script: list[str]  # as the user typed it: path or -m module, then arguments
    cwd: str
    created: str  # ISO 8601
    environment: Environment
    ending: Ending
    schema: int = SCHEMA
    options: list[str] = []  # options of slipstream, as typed before the script
    revision: Revision | None = None  # None: not under git
    loaders: list[Loader] = []
    models: list[Model] = []
    optimizers: list[Optimizer] = []
    makes_optimizer: bool = False  # stepped or not: the script trains, though not necessarily while it was observed
    trainer: Trainer | None = None  # None: the script's own loop, or none was found
    flags: list[Flag] = []  # of the script's own command line
    sites: list[Site] = []
    statements: list[Statement] = []  # on the lines of `sites`, as far as their source could be read
    events: list[Event] = []
    blocks: list[Block] = []
    steps: list[Step] = []
    evaluations: list[Evaluation] = []
    fetches: list[Fetch] = []
    stacks: list[StackCount] = []
    foreign_load: list[LoadSample] = []  # while the script ran, in order; empty: the system does not tell
    memory: list[Memory] = []
    leaks: list[Leak] = []
    worker_memory: list[WorkerMemory] = []
    sampling_ms: float = 5.0  # between two samples of one process
    length: Length | None = None
    anatomy: Anatomy | None = None
    torch_profile: TorchProfile | None = None  # if the user asked for it
    rehearsals: list[Rehearsal] = []
    speedtest: SpeedTest | None = None  # the last result of `slipstream machine` in this directory
    footprints: list[Footprint] = []  # of `memory`: the script's own batch size first, then smaller ones
    summary: Summary | None = None
    findings: list[Finding] = []
    notes: list[str] = []  # sentences of the trials about what could not be observed or was disabled
    # Sentences that the diagnosis adds. Each diagnosis makes them anew. None: `notes` contains those of the diagnosis
    # too, because the session was saved by an older version.
    diagnosis_notes: list[str] | None = []
    idle_gpu: IdleGpu | None = None
    no_overlay: str = ""  # why trials ran without a throw-away file system; "": all had one
    tuning: Tuning | None = None  # of `tune`
    fitting: Fitting | None = None  # of `tune` with --fit or --memory-limit
    passed_through: list[str] = []  # caches shared with other programs: the script's writes there are permanent
    written: list[str] = []  # files that the script wrote (discarded; permanent where no overlay was possible)
