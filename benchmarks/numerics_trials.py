"""Runs the trials of one script for numerics_errors.py: the script, its controls, every sound technique that applies,
and every planted fault. Each trial is saved when it ends, so an interrupted benchmark continues where it stopped."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from slipstream.diagnose import diagnose
from slipstream.records import RANDOM_DRAWS, Choice, Fingerprint, Precision, Recipe, Role, Setting, Tick, TrialSpec
from slipstream.supervise.check import CheckOptions, supervise
from slipstream.supervise.race import ProcessBackend, tick_of
from slipstream.techniques._core.catalogue import environment_of, technique
from slipstream.techniques._core.observation import Observation

HERE = Path(__file__).parent
ENTRY = str(HERE / "planted_faults" / "entry.py")
NUM_STEPS = 60
FAULT_STEPS = 40  # Steps of a trial with a planted fault
WARM_UP = 5
BLOCK = 30  # Steps of a block. At the end of each block the digest of the weights is recorded.
CHECK_S = 6.0
LIMIT_S = 150.0  # Time limit for the start of a trial
NUM_SEEDS = 3

# Techniques that may change numbers but should not change the training. If the technique offers settings, this setting
# is used if it is among them, or else the first one offered. A technique with True is tried even if it offers none.
TECHNIQUES: dict[str, tuple[Setting, bool]] = {
    "channels_last": (True, False),
    "fused_optimizer": (True, False),
    "cpu_threads": (2, True),  # All other trials have one thread.
    "mixed_precision": ("bf16", False),
    "fused_attention": (True, False),
    "flush_denormals": (True, True),
    "set_to_none": (True, True),
    "batched_fetch": (True, False),
    "workers": (2, False),
    "thread_workers": (2, False),
    "persistent_workers": (True, False),
    "length_buckets": (True, False),
    "read_ahead": (4, False),
    "buffer_reuse": (True, False),
    "checkpointing": ("all", False),
    "micro_batches": (2, False),
    "accumulation": (2, False),
    "compile": ("default", False),
}
FAULTS = (
    "gradients_scaled=0.9",
    "gradients_scaled=1.03",
    "gradient_dropped",
    "labels_shifted",
    "batch_skipped",
    "batch_repeated",
    "statistics_twice",
    "statistics_frozen",
    "dropout_off",
    "dropout_doubled",
    "weight_decay_lost",
    "scale_not_undone",
    "fp16_unscaled",
    "clipped_scaled",
)
BF16 = Choice("mixed_precision", "bf16")
_VARIABLES = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}


class Script(msgspec.Struct, frozen=True):
    name: str
    command: list[str]
    folder: str  # The working directory
    is_public: bool = False
    variables: dict[str, str] = {}
    without: list[str] = []  # Techniques and faults that are not tried


class Trial(msgspec.Struct, frozen=True):
    """The trial of one recipe, or of one control."""

    key: str
    fingerprint: Fingerprint = Fingerprint()
    seconds: float = 0.0  # Time of the whole trial, including its start
    step_s: float = 0.0  # Time of a step in the fastest block
    changes: list[str] = []
    declined: list[str] = []
    failure: str = ""
    facts: str = ""


class Offer(msgspec.Struct, frozen=True):
    """The result of a check of the script: what counts as a step, and which techniques apply."""

    tick: Tick = "optimizer"
    settings: dict[str, Setting] = {}
    refused: dict[str, str] = {}
    failure: str = ""
    facts: str = ""


def facts_of(script: Script) -> str:
    """A digest of everything that a trial depends on. Saved trials with another digest are repeated."""
    package = Path(sys.modules["slipstream"].__file__ or "").parent
    recorded = [package / "trial" / name for name in ("rounding_noise.py", "fingerprint.py", "tensor_sketch.py")]
    files = [*recorded, HERE / "planted_faults" / "techniques" / "planted.py"]
    files += [Path(script.folder) / script.command[0]]
    digest = hashlib.sha256(repr((script.command, script.variables, NUM_STEPS, FAULT_STEPS)).encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


class Records:
    """The saved trials of one script."""

    def __init__(self, folder: Path, script: Script) -> None:
        self._folder = folder / script.name
        self._facts = facts_of(script)
        self._folder.mkdir(parents=True, exist_ok=True)

    def load(self, key: str) -> Trial | None:
        found = self._load(key, Trial)
        return found if found is not None and found.facts == self._facts else None

    def save(self, trial: Trial) -> None:
        self._save(trial.key, msgspec.structs.replace(trial, facts=self._facts))

    def offer(self) -> Offer | None:
        found = self._load("offer", Offer)
        return found if found is not None and found.facts == self._facts else None

    def save_offer(self, offer: Offer) -> None:
        self._save("offer", msgspec.structs.replace(offer, facts=self._facts))

    def _load(self, key: str, kind: type[msgspec.Struct]) -> Any:
        path = self._folder / f"{_file_name(key)}.msgpack"
        try:
            return msgspec.msgpack.decode(path.read_bytes(), type=kind)
        except (OSError, msgspec.DecodeError):
            return None

    def _save(self, key: str, value: msgspec.Struct) -> None:
        partial = self._folder / f"{_file_name(key)}.partial"
        partial.write_bytes(msgspec.msgpack.encode(value))
        os.replace(partial, partial.with_suffix(".msgpack"))


def _file_name(key: str) -> str:
    return "".join(char if char.isalnum() or char in "-_" else "-" for char in key)


class Plan(msgspec.Struct, frozen=True):
    key: str
    role: Role
    recipe: Recipe = Recipe()
    precision: Precision = "fp32"
    draw: int = 0


def control_plans() -> list[Plan]:
    plans = [Plan("base", "base"), Plan("repeat", "twin", Recipe((Choice("nothing"),)))]
    plans += [Plan(f"rounding-fp32-{draw}", "rounding", draw=draw) for draw in range(RANDOM_DRAWS)]
    plans += [
        Plan(f"rounding-bf16-{draw}", "rounding", precision="bf16", draw=draw) for draw in range(RANDOM_DRAWS + 1)
    ]
    return plans + [Plan(f"seed-{draw}", "seed", draw=draw) for draw in range(NUM_SEEDS)]


def technique_plans(offer: Offer, without: list[str]) -> list[Plan]:
    plans = []
    for name, setting in offer.settings.items():
        if name not in without:
            # A technique that needs a proof is judged by a trial with the base's random numbers.
            role: Role = "proof" if technique(name).CARD.needs_proof else "candidate"
            plans.append(Plan(f"{name}={setting}", role, Recipe((Choice(name, setting),))))
    return plans


def fault_plans(offer: Offer, without: list[str], can_approximate: bool) -> Iterator[tuple[Plan, Plan | None]]:
    """Yields for each fault its trial in fp32, and its trial in bf16 if the script can run in bf16."""
    for fault in FAULTS:
        if fault.partition("=")[0] not in without:
            planted = Choice("planted", f"{fault}@{offer.tick}")
            plain = Plan(f"fault-{fault}", "proof", Recipe((planted,)))
            in_bf16 = Plan(f"fault-bf16-{fault}", "proof", Recipe((BF16, planted)))
            yield plain, in_bf16 if can_approximate and fault != "fp16_unscaled" else None


def measure(script: Script, folder: Path, told: str = "") -> None:
    """Runs all trials of a script that are not saved yet."""
    records = Records(folder, script)
    os.chdir(script.folder)
    os.environ.update(_VARIABLES | script.variables)
    offer = records.offer()
    if offer is None:
        offer = _check(script)
        records.save_offer(offer)
    if offer.failure:
        print(f"{told}{script.name}: {offer.failure}", file=sys.stderr, flush=True)
        return
    with _backend(script, offer) as backend:
        runner = _Runner(backend, records, f"{told}{script.name}")
        for plan in control_plans():
            trial = runner.run(plan)
            if plan.role == "base" and not trial.fingerprint.losses:
                return
        for plan in technique_plans(offer, script.without):
            runner.run(plan)
        in_bf16 = records.load("mixed_precision=bf16")
        for plain, approximate in fault_plans(offer, script.without, in_bf16 is not None and not in_bf16.failure):
            is_planted = bool(_faults_in(runner.run(plain)))
            if is_planted and approximate is not None:
                runner.run(approximate)


def _faults_in(trial: Trial) -> list[str]:
    return [change for change in trial.changes if change.startswith("planted:")]


def _backend(script: Script, offer: Offer) -> ProcessBackend:
    def variables(recipe: Recipe) -> dict[str, str]:
        chosen = [choice for choice in recipe.choices if choice.technique != "planted"]
        return {name: value for one in chosen for name, value in environment_of(one.technique, one.setting).items()}

    return ProcessBackend(
        script.command,
        tick=offer.tick,
        environment_of=variables,
        warm_up=WARM_UP,
        limit_s=LIMIT_S,
        start_limit_s=LIMIT_S,
        entry=ENTRY,
        may_fork=True,
    )


class _Runner:
    def __init__(self, backend: ProcessBackend, records: Records, told: str) -> None:
        self._backend = backend
        self._records = records
        self._told = told
        self._num_trials = 0

    def run(self, plan: Plan) -> Trial:
        known = self._records.load(plan.key)
        if known is not None:
            return known
        self._num_trials += 1
        start_s = time.monotonic()
        # No trial has the role `base`, because the backend would end candidates that are far slower than the base.
        role = "twin" if plan.role == "base" else plan.role
        spec = TrialSpec(self._num_trials, role, plan.recipe, plan.precision, plan.draw)
        failure = self._backend.enter(spec)
        num_steps, wanted = (
            WARM_UP,
            FAULT_STEPS if plan.role == "proof" and "planted" in str(plan.recipe) else NUM_STEPS,
        )
        while not failure and num_steps < wanted:
            block = min(BLOCK, wanted - num_steps)
            timing = self._backend.run_block(spec.ident, 0, block, 0)
            num_steps += block
            failure = timing.failure
            if timing.is_last:
                break
        record = self._backend.leave(spec.ident)
        seconds = time.monotonic() - start_s
        step_s = min((timing.step_s for timing in record.timings if timing.num_steps), default=0.0)
        changes, declined = ([str(note) for note in notes] for notes in (record.changes, record.declined))
        trial = Trial(
            plan.key, record.fingerprint, seconds, step_s, changes, declined, failure.detail if failure else ""
        )
        self._records.save(trial)
        print(f"{self._told} {plan.key}: {seconds:.1f} s{_ending(trial)}", file=sys.stderr, flush=True)
        return trial


def _ending(trial: Trial) -> str:
    return "".join(f"; {what}" for what in (trial.failure, *trial.changes[:2], *trial.declined[:2]) if what)[:300]


def _check(script: Script) -> Offer:
    session = diagnose(supervise(CheckOptions(script.command, seconds=CHECK_S)))
    if not session.steps:
        return Offer(failure=f"the check saw no step: {session.ending.message or session.ending.reason}")
    observation = Observation(session)
    settings: dict[str, Setting] = {}
    refused: dict[str, str] = {}
    for name, (setting, is_always) in TECHNIQUES.items():
        one = technique(name)
        answer = one.applies(observation)
        offered = list(one.settings(observation)) if answer.is_yes else []
        if offered:
            settings[name] = setting if setting in offered else offered[0]
        elif is_always:
            settings[name] = setting
        else:
            refused[name] = answer.reason
    return Offer(tick_of(session), settings, refused)
