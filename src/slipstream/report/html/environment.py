"""The end of the page: the machine, the software, and the commands that reproduce the measurement."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from slipstream.memory.remedies import list_remedies
from slipstream.numbers import in_bytes, plural
from slipstream.records import Environment, Session
from slipstream.report.terminal.footer import hardware, software
from slipstream.report.text.memory import MEMORY
from slipstream.techniques._core.catalogue import catalogue


def facts(session: Session) -> list[tuple[str, str]]:
    """Returns names and values of the machine, the software and the script's objects."""
    return [(name, value) for name, value in _facts(session) if value]


def _facts(session: Session) -> Iterator[tuple[str, str]]:
    environment = session.environment
    yield "machine", " · ".join(hardware(environment))
    yield "torch", " · ".join(software(environment))
    yield "GPUs", " · ".join(_gpus(environment))
    yield "system", f"{environment.system}, Python {environment.python}, load {environment.load:.1f} at the start"
    yield "libraries", " · ".join(f"{name} {version}" for name, version in sorted(environment.libraries.items()))
    yield "model", " · ".join(_models(session))
    yield "loader", " · ".join(_loaders(session))
    yield "optimizer", " · ".join(f"{each.class_name} on {each.device}" for each in session.optimizers)
    yield "measured", session.created
    yield "slipstream", environment.slipstream


def _gpus(environment: Environment) -> Iterator[str]:
    for gpu in environment.gpus:
        more = [f"capability {gpu.capability}"] if gpu.capability else []
        more += [f"driver {gpu.driver}"] if gpu.driver else []
        yield f"{gpu.name} ({', '.join([in_bytes(gpu.memory_bytes), *more])})"


def _models(session: Session) -> Iterator[str]:
    for model in session.models:
        compiled = ", compiled" if model.is_compiled else ""
        types = ", ".join(model.dtypes)
        yield f"{model.class_name}: {plural(model.num_parameters, 'parameter')} of {types} on {model.device}{compiled}"


def _loaders(session: Session) -> Iterator[str]:
    for loader in session.loaders:
        batch = f", batch {loader.batch_size:,}" if loader.batch_size else ""
        yield f"{loader.class_name} of {loader.dataset_name}: {plural(loader.num_workers, 'worker')}{batch}"


def commands(session: Session) -> list[tuple[str, str]]:
    """Returns commands to type, each with its purpose."""
    if session.command not in ("check", "tune", MEMORY):
        return []
    script = shlex.join(session.script)
    typed = shlex.join(["slipstream", session.command, *session.options])
    listed = [("The folder", f"cd {shlex.quote(session.cwd)}"), ("This report", f"{typed} {script}")]
    tuning = session.tuning
    if tuning is not None and tuning.recipe.choices:
        names = ",".join(choice.technique for choice in tuning.recipe.choices)
        listed.append(("Only the kept techniques", f"slipstream tune --only {shlex.quote(names)} {script}"))
        listed.append(("Training with the recipe", f"slipstream run {script}"))
    elif session.command == MEMORY:
        names = ",".join(_raced(session))
        listed += [("The remedies, raced", f"slipstream tune --only {names} {script}")] if names else []
    elif tuning is None:
        listed.append(("What makes it faster", f"slipstream tune {script}"))
    return listed


def _raced(session: Session) -> list[str]:
    """Returns the remedies that are techniques, because `tune` can measure what they free and cost.

    Remedies that change the training are left out, because only the user may allow them.
    """
    remedies = list_remedies(session.footprints[0]) if session.footprints else []
    return [remedy.name for remedy in remedies if remedy.name in catalogue() and remedy.numerics != "different"]
