"""A synthetic session with everything that a page can show, and one in which every text is an attack."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.records import (
    BlockTiming,
    Event,
    Finding,
    Footprint,
    Gpu,
    GpuReading,
    Leak,
    Length,
    Memory,
    ModuleShare,
    Recipe,
    Session,
    Site,
    Step,
    TrialRecord,
    TrialSpec,
)
from slipstream.report.html.page import to_page
from slipstream.testing.made_fingerprints import made_fingerprint
from slipstream.testing.made_sessions import (
    FILE,
    made_anatomy,
    made_environment,
    made_footprint,
    made_session,
    made_stack,
)
from slipstream.testing.made_verdicts import made_tuning, made_verdict

ATTACK = (
    "</script></title></style>--><script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>"
    '" onmouseover="window.pwned = 1" \' {{ 7 * 7 }} \x1b[31m\x00 \u202e \ud800 ' + "y" * 200
)


def events_of(step: Step) -> list[Event]:
    """Returns the events of the phases in order, without gaps."""
    now, events = step.start_ns, []
    for kind in ("input", "transfer", "forward", "backward", "optimizer"):
        end = now + int(step.phases.get(kind, 0.0) * 1e6)
        if end > now:
            events.append(Event(kind, 0, now, end, samples=32))  # type: ignore[arg-type]
        now = end
    return events


def make_trials(recipe: Recipe) -> list[TrialRecord]:
    """Twelve rounds of base, control and recipe, 30 s in total, and a seed control that was not timed."""
    draws, seconds = random.Random(0), {"base": 1.83, "twin": 1.82, "candidate": 1.14}
    recipes = {"base": Recipe(), "twin": made_verdict("nothing", "rejected").recipe, "candidate": recipe}
    trials = []
    for ident, (role, timing_s) in enumerate(seconds.items()):
        timings = [
            BlockTiming(
                ident, number, 10 * number, 10, timing_s * draws.uniform(0.97, 1.1), int((3 * number + ident) * 1e9)
            )
            for number in range(12)
        ]
        spec = TrialSpec(ident, role, recipes[role])  # type: ignore[arg-type]
        trials.append(TrialRecord(spec, timings, made_fingerprint(120, rounding=1e-7 * ident)))
    return [
        *trials,
        TrialRecord(TrialSpec(3, "seed"), [BlockTiming(3, -1, 0, 10, 1.0, 0)], made_fingerprint(120, seed=1)),
    ]


def make_full_session(num_steps: int = 60) -> Session:
    """Returns a diagnosed and tuned session with two workers and a GPU."""
    stacks = [made_stack("decode", 14, 300, role="worker"), made_stack("transform", 15, 100, role="worker")]
    modules = [ModuleShare("layers.0", "Conv2d", 3.0, 2_000_000, {}, 5.0, 4_000_000), ModuleShare("", "Net", 1.0, 0)]
    memory = [Memory(at, at * 1_000_000, 4 * 10**8 + 10**5 * at, 2 * 10**9) for at in range(num_steps)]
    seen = made_session(
        input_ms=41.0,
        num_steps=num_steps,
        num_workers=2,
        work_ms=90.0,
        stacks=stacks,
        anatomy=made_anatomy({"aten::mm": (3, 9.0), "aten::relu": (9, 2.0)}, modules=modules, flops=6_000_000),
        memory=memory,
        environment=made_environment(device="cuda:0"),
        length=Length(90, None, "--epochs"),
    )
    readings = [GpuReading(at * 10**9, 0, 0.2 + 0.01 * at, 2 * 10**9, 80.0 + at) for at in range(30)]
    environment = msgspec.structs.replace(
        seen.environment, gpus=[Gpu("NVIDIA A10G", 24 * 10**9, "8.6", "550")], readings=readings
    )
    events = [event for step in seen.steps for event in events_of(step)]
    seen = diagnose(msgspec.structs.replace(seen, environment=environment, events=events, options=["--html"]))
    tuning = made_tuning()
    tuning = msgspec.structs.replace(tuning, trials=make_trials(tuning.recipe))
    footprints = [made_footprint(32, 60_000_000), made_footprint(16, 30_000_000)]
    notes = ["Only the first loader was drained."]
    return msgspec.structs.replace(seen, command="tune", tuning=tuning, notes=notes, footprints=footprints)


def attacked(value: Any, key: str = "") -> Any:
    """Returns the same builtin objects. Every text from the user or the machine is replaced."""
    kept = {
        "command",
        "reason_",
        "kind",
        "decision",
        "role",
        "bound",
        "operator_class",
        "stage",
        "phase",
        "claimed",
        "kinds",
    }
    if isinstance(value, dict):
        return {name: attacked(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [attacked(each, key) for each in value]
    return ATTACK if isinstance(value, str) and key not in kept else value


def make_attack() -> Session:
    """Replaces every text by an attack, except texts from which slipstream selects its own words."""
    full = make_full_session()
    site = Site("/x/" + ATTACK, 3, ATTACK, ATTACK)
    finding = Finding("cause", ATTACK, ATTACK, 2.0, ATTACK, site, [ATTACK], ATTACK)
    stacks = [msgspec.structs.replace(each, file=ATTACK, function=ATTACK, expression=ATTACK) for each in full.stacks]
    tuning = full.tuning
    assert tuning is not None and full.anatomy is not None
    verdicts = [
        msgspec.structs.replace(each, technique=ATTACK, setting=ATTACK, reason=ATTACK) for each in tuning.verdicts
    ]
    nasty = made_verdict(ATTACK, "kept", 1.5, ATTACK).recipe
    tuning = msgspec.structs.replace(
        tuning, verdicts=verdicts, recipe=nasty, noise_note=ATTACK, notes=[ATTACK], trials=make_trials(nasty)
    )
    builtins = msgspec.to_builtins(full.environment)
    environment = msgspec.convert(attacked(builtins), type(full.environment))
    operators = [msgspec.structs.replace(each, name=ATTACK) for each in full.anatomy.operators]
    modules = [msgspec.structs.replace(each, path=ATTACK, class_name=ATTACK) for each in full.anatomy.modules]
    return msgspec.structs.replace(
        full,
        script=[ATTACK, ATTACK],
        cwd="/" + ATTACK,
        created=ATTACK,
        options=[ATTACK],
        ending=msgspec.structs.replace(full.ending, reason="raised", message=ATTACK),
        environment=environment,
        findings=[finding],
        stacks=stacks,
        leaks=[Leak(ATTACK, 3, 100, site)],
        anatomy=msgspec.structs.replace(full.anatomy, operators=operators, modules=modules),
        models=[msgspec.structs.replace(each, class_name=ATTACK, dtypes=[ATTACK]) for each in full.models],
        loaders=[msgspec.structs.replace(each, class_name=ATTACK, dataset_name=ATTACK) for each in full.loaders],
        footprints=[msgspec.convert(attacked(msgspec.to_builtins(each)), Footprint) for each in full.footprints],
        notes=[ATTACK],
        written=[ATTACK],
        tuning=tuning,
    )


@pytest.fixture(scope="session")
def full() -> Session:
    return make_full_session()


@pytest.fixture(scope="session")
def memory(full: Session) -> Session:
    """Returns a session as `slipstream memory` saves it, with a footprint and without conclusions about time."""
    bare = made_session(num_steps=6)
    return msgspec.structs.replace(bare, command="memory", footprints=full.footprints, steps=[], events=[])


@pytest.fixture(scope="session")
def long_page() -> str:
    """Returns a page with 2,000 observed steps."""
    return to_page(make_full_session(2000))


@pytest.fixture(scope="session")
def attack() -> Session:
    return make_attack()


@pytest.fixture
def source_site() -> Site:
    return Site(FILE, 3, "loader = DataLoader(photos)", "main")
