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
    """How the script ended. docs/json.md shows the descriptions."""

    reason: Annotated[
        Literal["stopped", "finished", "raised", "interrupted", "killed"],
        Meta(description="`stopped` (by slipstream), `finished`, `raised`, `interrupted` or `killed`"),
    ]
    exit_code: Annotated[int, Meta(description="exit code of the script; 0 if slipstream stopped the script")]
    seconds: Annotated[float, Meta(description="time from the start of the script to its end")]
    message: Annotated[str, Meta(description="the exception that the script raised, or empty")] = ""


class Memory(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Memory in use at the end of a step, and the number of live tensors if they were counted. In a loader's worker,
    `step` is the number of batches and `resident_bytes` is the private memory."""

    step: int
    time_ns: int
    resident_bytes: int
    device_bytes: int
    num_graphs: int = -1  # live tensors with a grad_fn; -1: not counted
    num_tensors: int = -1


class WorkerMemory(msgspec.Struct, frozen=True):
    """The private memory of one worker process, after one of its first batches and after its last batch."""

    loader: int
    worker: int
    num_batches: int  # batches between the two measurements
    first_bytes: int
    last_bytes: int


class Leak(msgspec.Struct, frozen=True):
    """A variable that keeps tensors alive from step to step, and the user's line that fills it."""

    name: str  # "losses", "self.history"
    num_tensors: int
    num_bytes: int = 0
    site: Site | None = None
    has_graph: bool = True  # False: the tensors have no graph, and their container grew until the end
    is_sum: bool = False  # whether the variable is one tensor, to which every step adds a term with a graph


class Length(msgspec.Struct, frozen=True):
    """The length of the training, as far as the script states it."""

    num_epochs: int | None = None
    num_steps: int | None = None
    source: str = ""  # "--epochs", "max_iters", "OneCycleLR"
    around: Site | None = None  # a loop of the user that repeats the whole training: folds, seeds


class Summary(msgspec.Struct, frozen=True):
    """The numbers of a typical step, over the watched blocks."""

    num_steps: int  # steps that the numbers are based on: the undisturbed steps, or all steps if there are none
    step_ms: float  # median step
    step_low_ms: float  # 95% interval of the median
    step_high_ms: float
    samples_per_step: float
    samples_per_s: float
    phases: dict[str, float]  # adds up to step_ms
    device_phases: dict[str, float] | None
    bound: Bound
    ceilings: Ceilings
    is_inference: bool = False
    evaluation_share: float | None = None  # share of the epoch
    evaluation_note: str = ""
    seconds_left: float | None = None  # duration of the whole training at this rate
    seconds_best: float | None = None  # duration of the whole training at the best ceiling
    num_undisturbed: int | None = None  # steps without load of other programs; None: the session is of an older version
    num_disturbed: int = 0  # steps with load of other programs
    foreign_cores: float = 0.0  # how many cores other programs used during disturbed steps, on average
    host_phases: dict[str, float] | None = None  # phases on the host, if `phases` are the device's; adds up to step_ms
    device_idle: dict[str, float] | None = None  # by phase, see `Step.device_idle`


class Session(msgspec.Struct, frozen=True):
    command: str  # check, tune, run, watch, memory
    script: list[str]  # the script as the user typed it: path or -m module, then arguments
    cwd: str
    created: str  # ISO 8601
    environment: Environment
    ending: Ending
    schema: int = SCHEMA
    options: list[str] = []  # options of slipstream, as typed before the script
    revision: Revision | None = None  # None: the script is not under git
    loaders: list[Loader] = []
    models: list[Model] = []
    optimizers: list[Optimizer] = []
    makes_optimizer: bool = False  # whether the script creates an optimizer, even one that made no observed step
    trainer: Trainer | None = None  # None: the script has its own loop, or no trainer was found
    flags: list[Flag] = []  # options of the script's own command line
    sites: list[Site] = []
    statements: list[Statement] = []  # the statements on the lines of `sites`, as far as their source could be read
    events: list[Event] = []
    blocks: list[Block] = []
    steps: list[Step] = []
    evaluations: list[Evaluation] = []
    fetches: list[Fetch] = []
    stacks: list[StackCount] = []
    foreign_load: list[LoadSample] = []  # load of other programs while the script ran; empty: not measurable
    memory: list[Memory] = []
    leaks: list[Leak] = []
    worker_memory: list[WorkerMemory] = []
    sampling_ms: float = 5.0  # interval between two samples of one process
    length: Length | None = None
    anatomy: Anatomy | None = None
    torch_profile: TorchProfile | None = None  # None: the user did not ask for a profile
    rehearsals: list[Rehearsal] = []
    speedtest: SpeedTest | None = None  # the last result of `slipstream machine` in this directory
    footprints: list[Footprint] = []  # from the command `memory`: the script's own batch size first, then smaller ones
    summary: Summary | None = None
    findings: list[Finding] = []
    notes: list[str] = []  # sentences of the trials about what could not be observed or was disabled
    # Sentences of the last diagnosis. None: the session is of an older version, and `notes` contains these sentences.
    diagnosis_notes: list[str] | None = []
    idle_gpu: IdleGpu | None = None
    no_overlay: str = ""  # why trials ran without a throw-away file system; "": all trials had one
    tuning: Tuning | None = None  # the result of `tune`
    fitting: Fitting | None = None  # the result of `tune` with --fit or --memory-limit
    passed_through: list[str] = []  # caches shared with other programs, in which the script's writes are permanent
    written: list[str] = []  # files that the script wrote; they were discarded if there was an overlay
