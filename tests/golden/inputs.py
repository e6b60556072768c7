"""Inputs of the golden commands: made sessions, a made speed test, simulated tunings and simulated fits.

Every number here is chosen or drawn from a fixed seed. Nothing is measured. All imports of slipstream's testing helpers
are in this file.
"""

from __future__ import annotations

import gzip
import os
import random
import shutil
from pathlib import Path
from typing import Any

import msgspec

from slipstream.diagnose import diagnose
from slipstream.fit.options import FitOptions
from slipstream.fit.search import fit
from slipstream.recipe.file import read_recipe, write_recipe
from slipstream.records import (
    BlockTiming,
    Choice,
    Evaluation,
    Event,
    Failure,
    Fingerprint,
    FitAttempt,
    Fitting,
    Footprint,
    Gpu,
    GpuReading,
    Leak,
    Length,
    Memory,
    ModuleShare,
    Reading,
    Recipe,
    Rehearsal,
    Session,
    Site,
    SpeedTest,
    StackCount,
    TechniqueNote,
    TensorFacts,
    TrialRecord,
    TrialSpec,
    Tuning,
    Verdict,
)
from slipstream.records.race import Speed
from slipstream.store.older_sessions import decode_session
from slipstream.store.sessions import save_speedtest
from slipstream.techniques._core.card import no
from slipstream.testing.made_fingerprints import made_fingerprint, made_fingerprint_of
from slipstream.testing.made_sessions import (
    FILE,
    FIRST_NS,
    MODEL_SITE,
    made_anatomy,
    made_environment,
    made_footprint,
    made_loader,
    made_optimizer,
    made_session,
    made_stack,
)
from slipstream.testing.made_techniques import made_technique
from slipstream.testing.made_verdicts import tuned
from slipstream.testing.noise_model import Noise, NoiseModel
from slipstream.testing.simulated_backend import SimulatedBackend, choice_factors
from slipstream.testing.simulated_tunings import simulate
from slipstream.tuning.options import TuneOptions
from slipstream.tuning.progress import SilentListener
from slipstream.tuning.search import tune

SAVED = Path(__file__).parent / "saved"
SAVED_SESSIONS = ("check", "memory", "tune", "fit")
GIB = 1 << 30
FIRST_MTIME_S = 1_800_000_000  # of the oldest session file; each later one is a second younger

replace = msgspec.structs.replace


# Made sessions


def made_sessions() -> dict[str, Session]:
    """By file name, oldest first. Together they show most parts of every report."""
    return {
        "made-healthy": diagnose(made_session()),
        "made-brief": diagnose(made_session(num_steps=4)),
        "made-short": diagnose(made_session(is_short=True)),
        "made-input-bound": diagnose(_input_bound()),
        "made-few-workers": diagnose(_few_workers()),
        "made-starved": diagnose(made_session(input_ms=25.0, num_workers=4, work_ms=90.0, starved=1.5)),
        "made-gpu": diagnose(_gpu()),
        "made-compute": diagnose(_compute()),
        "made-validation": diagnose(_validation()),
        "made-growing": diagnose(_growing()),
        "made-memory": _memory(),
        "made-fit": _fitted(_BATCHES),
        "made-fit-remedies": _fitted(_REMEDIES),
        "made-tune": replace(tuned(diagnose(_few_workers())), footprints=[made_footprint(32, 60_000_000)]),
        "made-tune-interrupted": tuned(diagnose(made_session()), is_complete=False, was_interrupted=True, total=None),
    }


def _input_bound() -> Session:
    """No workers; decoding takes most of the input."""
    stages = (("decode", 14, 300), ("transform", 15, 90), ("read", 13, 40), ("collate", 18, 30))
    return made_session(input_ms=80.0, stacks=[made_stack(stage, line, count) for stage, line, count in stages])


def _few_workers() -> Session:
    return made_session(
        input_ms=41.0,
        num_workers=2,
        work_ms=90.0,
        stacks=[made_stack("decode", 14, 300, role="worker"), made_stack("transform", 15, 100, role="worker")],
        environment=made_environment(num_usable=8.0),
        length=Length(90, None, "--epochs"),
    )


def _gpu() -> Session:
    environment = replace(
        made_environment(device="cuda:0", has_tf32=True, has_fast_bf16=True),
        gpus=[Gpu("NVIDIA A10G", 24 * 10**9, "8.6", "550")],
        readings=[GpuReading(at * 10**9, 0, 0.2 + 0.01 * at, 2 * 10**9, 80.0 + at) for at in range(30)],
    )
    return replace(
        _on_gpu("transfer", 20.0, transfer_ms=12.0, num_workers=2, loader=made_loader(2, tensor_facts=[_IMAGES])),
        environment=environment,
    )


def _compute() -> Session:
    modules = [ModuleShare("layers.0", "Conv2d", 3.0, 2_000_000, {}, 5.0, 4_000_000), ModuleShare("", "Net", 1.0, 0)]
    operators = {"aten::mm": (3, 9.0), "aten::relu": (900, 2.0), "aten::add_": (4000, 9.0)}
    return made_session(
        optimizer_ms=12.0,
        optimizer=made_optimizer(num_tensors=400),
        anatomy=made_anatomy(operators, modules=modules, flops=6_000_000),
        rehearsals=[
            Rehearsal("fused_optimizer", "", 12.0, 3.0, 4.0, 3.8, 4.3, 41),
            Rehearsal("channels_last", "", 20.0, 16.0, 1.25, 1.2, 1.3, 9),
            Rehearsal("flush_denormals", "", 50.0, 20.0, 2.5, 2.2, 2.8, 9),
        ],
    )


def _validation() -> Session:
    step_ns = 32_000_000
    evaluations = [
        Evaluation(start_ns, start_ns + 400_000_000, 10, 320, 360.0, 40.0, True, after, 0, MODEL_SITE)
        for after, start_ns in ((20, FIRST_NS + 20 * step_ns), (40, FIRST_NS + 40 * step_ns))
    ]
    return made_session(evaluations=evaluations, length=Length(None, 10_000, "max_iters"))


def _growing() -> Session:
    """A graph is kept at every step."""
    memory = [Memory(step, step * 10**7, GIB + step * 10**6, 0, step, 50 + step) for step in range(100)]
    return replace(made_session(memory=memory), leaks=[Leak("losses", 80, 1000, Site(FILE, 44, "losses.append(loss)"))])


def _memory() -> Session:
    footprints = [made_footprint(32, 60_000_000), made_footprint(16, 30_000_000)]
    return replace(diagnose(made_session()), command="memory", footprints=footprints)


def _fitted(fitting: Fitting) -> Session:
    return replace(made_session(), command="tune", fitting=fitting)


_BASE = FitAttempt(32, is_held=False, peak_bytes=2 * GIB, step_ms=100.0, samples_per_s=320.0, rate=Speed(1.0, 1.0, 1.0))
_BATCHES = Fitting(
    6 * GIB,
    "--memory-limit",
    "cpu",
    32,
    True,
    attempts=[
        _BASE,
        FitAttempt(32, peak_bytes=2 * GIB),
        FitAttempt(104, outcome="ran_out"),
        FitAttempt(103, peak_bytes=6 * GIB),
        FitAttempt(96, peak_bytes=5 * GIB, samples_per_s=400.0, step_ms=240.0, rate=Speed(1.25, 1.2, 1.3, 12)),
        FitAttempt(64, peak_bytes=4 * GIB, samples_per_s=420.0, step_ms=152.0, rate=Speed(1.31, 1.28, 1.35, 12)),
    ],
    largest=96,
    too_large=104,
    fastest=64,
)
_REMEDIES = Fitting(
    GIB,
    "--memory-limit",
    "cpu",
    32,
    False,
    attempts=[
        _BASE,
        FitAttempt(32, outcome="ran_out"),
        FitAttempt(32, Recipe((Choice("micro_batches", 4),)), peak_bytes=GIB, rate=Speed(1 / 1.31, 0.7, 0.8, 12)),
        FitAttempt(32, Recipe((Choice("checkpointing", "half"),)), peak_bytes=GIB, rate=Speed(1 / 1.18, 0.8, 0.9, 12)),
    ],
    recipe=Recipe((Choice("checkpointing", "half"),)),
)
_SPEED_TEST = SpeedTest(
    "2026-01-01T00:00:00+00:00",
    made_environment(),
    [
        Reading("disk_cold", 550.0, "MB/s"),
        Reading("decode_scaling", 0.9, "of one core each"),
        Reading("import_torch", 1700.0, "ms"),
        Reading("multiply_fp32", 60.0, "GFLOP/s"),
        Reading("multiply_bf16", 5.0, "GFLOP/s"),
    ],
    21.0,
)


def read_saved(name: str) -> bytes:
    """A session file as slipstream wrote it. It is stored compressed because a tuning takes 500 KB."""
    return gzip.decompress((SAVED / f"{name}.msgpack.gz").read_bytes())


def fill_workspace(folder: Path) -> None:
    """A project folder with the saved sessions, the made ones, a speed test, the script and its recipe."""
    sessions = folder / ".slipstream" / "sessions"
    sessions.mkdir(parents=True)
    for name in ("train.py", "slipstream.toml"):
        shutil.copy(SAVED / name, folder / name)
    contents = {name: read_saved(name) for name in SAVED_SESSIONS}
    contents |= {name: msgspec.msgpack.encode(session) for name, session in made_sessions().items()}
    again = diagnose(decode_session(contents["check"]))
    contents["diagnosed-again"] = msgspec.msgpack.encode(again)
    for number, (name, content) in enumerate(contents.items()):
        path = sessions / f"{name}.msgpack"
        path.write_bytes(content)
        os.utime(path, (FIRST_MTIME_S + number,) * 2)
    save_speedtest(_SPEED_TEST, folder)


def written_recipes() -> dict[str, Any]:
    """What write_recipe writes for a saved and a made tuning, as TOML without the comments, and as it is read again."""
    saved = decode_session(read_saved("tune"))
    return {name: _written(session) for name, session in (("saved", saved), ("made", made_sessions()["made-tune"]))}


def _written(session: Session) -> dict[str, Any]:
    assert session.tuning is not None
    path = Path("written.toml")
    write_recipe(path, session.tuning, replace(session, cwd=os.getcwd()))
    lines = [line.partition("#")[0].rstrip() for line in path.read_text(encoding="utf-8").splitlines()]
    return {"lines": [line for line in lines if line], "read": msgspec.to_builtins(read_recipe(path))}


# Diagnoses


def diagnoses() -> dict[str, Any]:
    """By name of a made session: its summary, and the findings with gains and lines."""
    return {name: _diagnosis(session) for name, session in (_planted() | made_sessions()).items()}


def _diagnosis(session: Session) -> dict[str, Any]:
    diagnosed = diagnose(session)
    findings = [
        [one.cause, one.predicted_gain, one.site.line if one.site else None, list(one.techniques)]
        for one in diagnosed.findings
    ]
    return {"summary": msgspec.to_builtins(diagnosed.summary), "findings": findings}


def _planted() -> dict[str, Session]:
    """Sessions with one planted fault each."""
    light: dict[str, Any] = {"forward_ms": 3.0, "backward_ms": 6.0}
    crowded: dict[str, Any] = {"forward_ms": 5.0, "backward_ms": 9.0, "num_workers": 10, "starved": 2.0}
    many = made_environment(16.0, 8)
    cut = [_beside("transform", 26, 80, "frame.iloc[rows]"), _beside("compute", 28, 20, "model(x)")]
    by_hand = [_beside("update", 26, 60, "p.copy_(p - lr * update)"), _beside("compute", 28, 10, "model(x)")]
    loop = [made_stack("python", 15, 70, in_call=False), made_stack("transform", 16, 20)]
    resize = [made_stack("transform", 15, 90, leaf="PIL/Image.py:resize"), made_stack("transform", 16, 10)]
    no_loader: dict[str, Any] = {"has_loader": False, "input_ms": 0.0, "other_ms": 40.0}
    return {
        "no-workers": made_session(**light, input_ms=40.0),
        "no-workers-waiting": made_session(**light, input_ms=40.0, cpu_share=0.05),
        "no-workers-many-cores": made_session(**light, input_ms=60.0, environment=many),
        "no-workers-short-epochs": made_session(
            **light, input_ms=40.0, length=Length(num_epochs=100), loader=made_loader(num_batches=3)
        ),
        "too-few-workers": made_session(**light, input_ms=30.0, num_workers=1, work_ms=40.0, cpu_share=0.05),
        "too-many-workers": made_session(**crowded, input_ms=1.0, work_ms=36.0, cpu_share=0.55),
        "slow-transform": made_session(**light, input_ms=40.0, stacks=loop),
        "slow-resize": made_session(**light, input_ms=40.0, stacks=resize),
        "slow-read": made_session(**light, input_ms=40.0, stacks=[made_stack("read", 13, 90)], cpu_share=0.1),
        "slow-collate": made_session(**light, input_ms=40.0, stacks=[made_stack("collate", 20, 90)]),
        "no-loader": made_session(**no_loader, stacks=cut),
        "optimizer-by-hand": made_session(**no_loader, stacks=by_hand),
        "frequent-sync": _on_gpu("sync", 22.0),
        "pageable-transfer": _on_gpu("transfer", 20.0, transfer_ms=10.0, loader=made_loader(tensor_facts=[_IMAGES])),
        "many-threads": made_session(
            environment=made_environment(2.0, 16), rehearsals=[Rehearsal("threads", "2", 76.0, 30.0, 2.5, 2.3, 2.7, 5)]
        ),
        "full-precision": made_session(
            environment=made_environment(8.0, 8, "cuda:0", has_fast_bf16=True, has_tf32=True),
            anatomy=made_anatomy({"aten::mm": (30, 25.0), "aten::relu": (9, 2.0)}, flops=6_000_000_000),
        ),
    }


_IMAGES = TensorFacts("[0]", [32, 3, 224, 224], "float32", "cpu", 19_267_584, was_bytes=True)


def _beside(stage: str, line: int, count: int, expression: str) -> StackCount:
    """A place outside the loader and the model."""
    return made_stack(stage, line, count, phase="other", function="<module>", expression=expression)


def _on_gpu(kind: Any, device_ms: float, **facts: Any) -> Session:
    """Every step has one event of this kind, and a device that computes this long."""
    session = made_session(environment=made_environment(8.0, 8, "cuda:0"), **facts)
    events = [Event(kind, 1, step.start_ns, step.start_ns + 1, num_bytes=1_000_000) for step in session.steps]
    phases = {"forward": device_ms, "other": 40.0 - device_ms}
    sync_ms = 12.0 if kind == "sync" else 0.0
    steps = [replace(step, sync_ms=sync_ms, device_phases=phases) for step in session.steps]
    return replace(session, events=[*session.events, *events], steps=steps)


# Simulated tunings


def simulated_tunings() -> dict[str, Any]:
    """By name: every verdict of tunings through the real search, on a simulated track, with fixed seeds."""
    two_gain = choice_factors(a=0.8, b=0.9, slow=1.5)
    plain = {name: made_technique() for name in ("a", "b", "useless", "slow")}
    rivals = {"a": made_technique(claims=("call",)), "b": made_technique(claims=("call",)), "c": made_technique()}
    mixed = {
        "a": made_technique("reordered", (1, 2, 4)),
        "b": made_technique("approximate", ("bf16",)),
        "c": made_technique(answer=no("not here")),
        "d": made_technique("redrawn"),
    }
    noisy = [
        (
            f"noisy-{seed}",
            _tune(SimulatedBackend(two_gain, noise=_noise(seed), seed=seed, lottery=0.01), plain, seed=seed),
        )
        for seed in range(4)
    ]
    return {
        "calm": _tune(SimulatedBackend(two_gain), plain),
        **dict(noisy),
        "small-gain": _tune(SimulatedBackend(choice_factors(a=0.97), noise=_noise(5)), {"a": made_technique()}),
        "rivals": _tune(SimulatedBackend(choice_factors(a=0.8, b=0.7), noise=_noise(6)), rivals),
        "settings": _tune(SimulatedBackend(_setting_factor, noise=_noise(7), beside=0.75, num_trials=4), mixed),
        "strict-numerics": _tune(SimulatedBackend(_setting_factor, noise=_noise(8)), mixed, allow="identical"),
        "wrong-losses": _tune(SimulatedBackend(two_gain, fingerprint=_wrong_losses_with_a), plain),
        "failing": _tune(SimulatedBackend(two_gain, fault=_fault_with_b), plain),
        "one-rider-in-memory": _tune(SimulatedBackend(two_gain, num_trials=1, noise=_noise(9)), plain),
        "short-budget": _tune(SimulatedBackend(two_gain, noise=_noise(10)), plain, budget_s=40.0),
        "script-ends": _tune(SimulatedBackend(two_gain, num_steps=400, noise=_noise(11)), plain),
    }


def _tune(backend: SimulatedBackend, techniques: dict[str, Any], **order: Any) -> dict[str, Any]:
    known = {"nothing": made_technique(), **techniques}
    tuning = tune(diagnose(made_session()), backend, TuneOptions(**order), SilentListener(), known)
    return _told(tuning) | {"num_laps": backend.num_timings, "seconds_on_track": backend.now_s()}


def _told(tuning: Tuning) -> dict[str, Any]:
    return {
        "recipe": [[choice.technique, choice.setting] for choice in tuning.recipe.choices],
        "total": _interval(tuning.total),
        "noise": _interval(tuning.noise),
        "base_step_ms": tuning.base_step_ms,
        "base_samples_per_s": tuning.base_samples_per_s,
        "ceiling_ms": tuning.ceiling_ms,
        "seconds_spent": tuning.seconds_spent,
        "is_complete": tuning.is_complete,
        "verdicts": [_verdict(one) for one in tuning.verdicts],
    }


def _verdict(one: Verdict) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "technique": one.technique,
        "setting": one.setting,
        "decision": one.decision,
        "speed": _interval(one.speed),
        "numerics": [one.numerics.claimed, one.numerics.is_sound] if one.numerics else None,
        "step_ms": one.step_ms,
        "payback_steps": one.payback_steps,
        "recipe": [[choice.technique, choice.setting] for choice in one.recipe.choices],
    }


def _interval(speed: Speed | None) -> dict[str, Any] | None:
    return msgspec.to_builtins(speed) if speed is not None else None  # type: ignore[no-any-return]


def _noise(seed: int) -> Noise:
    return Noise(random.Random(seed), noise_model=NoiseModel())


def _setting_factor(recipe: Recipe) -> float:
    factors = {("a", 1): 0.9, ("a", 2): 0.75, ("a", 4): 0.8, ("b", "bf16"): 0.85, ("d", True): 0.95}
    product = 1.0
    for choice in recipe.choices:
        product *= factors.get((choice.technique, choice.setting), 1.0)
    return product


def _wrong_losses_with_a(spec: TrialSpec, num_steps: int) -> Fingerprint:
    if spec.recipe.setting_of("a") is not None:
        return made_fingerprint(num_steps, loss_shift=0.5)
    return made_fingerprint_of(spec, num_steps)


def _fault_with_b(spec: TrialSpec, num_steps: int) -> str:
    return "RuntimeError: made" if num_steps > 30 and spec.recipe.setting_of("b") is not None else ""


def simulated_outcomes() -> dict[str, Any]:
    """What slipstream.testing.simulated_tunings.simulate says: twelve techniques, of which one or none gains."""
    cases = [(seed, gain) for seed in range(3) for gain in (1.0, 1.15)]
    return {f"seed-{seed}-gain-{gain}": msgspec.to_builtins(simulate(seed, gain, lottery=0.01)) for seed, gain in cases}


# Simulated fits

_OWN, _START, _EACH = 16, 1000, 10  # samples of the script's batch; bytes at the start and for each sample
_OUT = Failure("RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory")


class MemoryTrack:
    """A track whose riders hold _START bytes and _EACH bytes a sample. A technique multiplies the latter by its saving
    and the step by its price. Batches of 64 are the fastest."""

    def __init__(self, savings: dict[str, float], prices: dict[str, float]) -> None:
        self._savings, self._prices = savings, prices
        self._specs: dict[int, TrialSpec] = {}
        self._limits: dict[int, int] = {}
        self._timings: dict[int, list[BlockTiming]] = {}
        self._now_s = 0.0

    def bound(self, trial: int, limit_bytes: int) -> None:
        self._limits[trial] = limit_bytes

    def enter(self, spec: TrialSpec) -> str:
        self._now_s += 3.0
        self._specs[spec.ident], self._timings[spec.ident] = spec, []
        return _OUT if self._held(spec.ident) > self._limits.get(spec.ident, 1 << 60) else None

    def run_block(self, trial: int, round: int, num_steps: int, lead_in: int) -> BlockTiming:
        batch = self._batch(trial)
        seconds = num_steps * batch * (0.02 + abs(batch - 64) / 1000) / 10
        for name in self._named(trial):
            seconds *= self._prices.get(name, 1.0)
        self._now_s += seconds
        timing = BlockTiming(trial, round, 0, num_steps, seconds, 0, num_samples=num_steps * batch)
        self._timings[trial].append(timing)
        return timing

    def record(self, trial: int) -> TrialRecord:
        return TrialRecord(
            self._specs[trial],
            timings=self._timings[trial],
            fingerprint=Fingerprint(losses=[(step, 2.0) for step in range(3)]),
            start_bytes=_START,
            held_bytes=self._held(trial),
            changes=[TechniqueNote(choice.technique, "done") for choice in self._specs[trial].recipe.choices],
        )

    def leave(self, trial: int) -> TrialRecord:
        return self.record(trial)

    def expect(self, spec: TrialSpec) -> None:
        """Nothing starts beside another rider here."""

    def capacity(self) -> int:
        return 4

    def now_s(self) -> float:
        return self._now_s

    def _batch(self, trial: int) -> int:
        return int(self._specs[trial].recipe.setting_of("resize") or _OWN)

    def _named(self, trial: int) -> list[str]:
        return [str(choice) for choice in self._specs[trial].recipe.choices]

    def _held(self, trial: int) -> int:
        share = 1.0
        for name in self._named(trial):
            share *= self._savings.get(name, 1.0)
        return int(_START + _EACH * self._batch(trial) * share)


def simulated_fits() -> dict[str, Any]:
    savings = {"again=all": 0.2, "again=half": 0.6, "pieces=2": 0.7, "pieces=4": 0.4, "pieces=8": 0.3}
    prices = {"again=all": 1.4, "again=half": 1.2, "pieces=2": 1.3, "pieces=4": 1.35, "pieces=8": 1.5}
    roomy, tight = _START + 205 * _EACH, _START + 8 * _EACH
    return {
        "batches": _fit(savings, prices, FitOptions(roomy)),
        "batches-kept": _fit(savings, prices, FitOptions(roomy, allow="different")),
        "own-fits": _fit(savings, prices, FitOptions(roomy, finds_batch=False)),
        "remedies": _fit(savings, prices, FitOptions(tight, finds_batch=False)),
        "short-budget": _fit(savings, prices, FitOptions(roomy, budget_s=10.0)),
    }


def _fit(savings: dict[str, float], prices: dict[str, float], order: FitOptions) -> dict[str, Any]:
    known = {
        "resize": made_technique("different", (32,), claims=("loader.batch_size",), purpose="fit"),
        "again": made_technique(settings=("all", "half"), claims=("recomputation",), purpose="memory"),
        "pieces": made_technique("reordered", (2, 4, 8), claims=("recomputation",), purpose="memory"),
    }
    session = diagnose(made_session(loader=made_loader(batch_size=_OWN, num_samples=5000)))
    session = replace(session, footprints=[_footprint(_OWN), _footprint(_OWN // 2)])
    fitting = fit(session, MemoryTrack(savings, prices), order, SilentListener(), known)
    told: dict[str, Any] = msgspec.to_builtins(fitting)
    for attempt in told["trials"]:  # as lines, so that the expected values need not change
        declined = [f"not: {note['technique']}: {note['text']}" for note in attempt.pop("declined")]
        attempt["changes"] = [f"{note['technique']}: {note['text']}" for note in attempt["changes"]] + declined
    return told


def _footprint(size: int) -> Footprint:
    peak = 400 + _EACH * size
    phases = {"forward": {"activations": peak}}
    return Footprint("cpu", size, size, peak, 0.0, "forward", "mm", None, 1.0, {"parameters": 300}, phases)
