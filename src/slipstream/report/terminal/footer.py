"""The end of a report: the machine, the software, and what could not be observed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from slipstream.numbers import in_bytes, in_percent, plural
from slipstream.records import Environment, Session
from slipstream.report.terminal.console import ConsoleStyle
from slipstream.report.terminal.layout import folded, wrapped
from slipstream.report.text.check import warning
from slipstream.report.text.locations import relative
from slipstream.report.text.notes import all_notes
from slipstream.report.text.step import ceilings_reason

_RUN = {"memory": "run"}
_UNCOVERED = ("/dev/shm/", "/run/")  # places that no overlay covers


def machine_lines(environment: Environment, ink: ConsoleStyle) -> Iterator[Text]:
    """Yields lines about the machine, then lines about torch and the GPUs."""
    yield from folded("machine", hardware(environment), ink)
    yield from folded("", software(environment), ink)


def hardware(environment: Environment) -> list[str]:
    usable = f"{environment.num_usable:g} of {plural(environment.num_logical, 'core')} usable"
    memory_bytes = min(environment.memory_limit_bytes or environment.memory_bytes, environment.memory_bytes)
    parts = [environment.cpu, usable, f"{in_bytes(memory_bytes)} memory"]
    if environment.shm_bytes is not None:
        parts.append(f"/dev/shm {in_bytes(environment.shm_bytes)}")
    parts += [f"{environment.disk_kind} disk"] if environment.disk_kind not in ("unknown", "") else []
    return parts


def software(environment: Environment) -> list[str]:
    parts = []
    if facts := environment.torch:
        parts.append(f"torch {facts.version} {facts.cpu_capability}".rstrip())
        parts.append(f"model on {facts.device or 'cpu'}")
        parts.append(plural(facts.num_threads, "thread"))
    parts += [f"{gpu.name} {in_bytes(gpu.memory_bytes)}" for gpu in environment.gpus] or [_unread_gpu(environment)]
    if readings := environment.readings:
        busy = sum(reading.utilisation for reading in readings) / len(readings)
        power_w = sum(reading.power_w for reading in readings) / len(readings)
        parts.append(f"GPU busy {in_percent(busy)}, {power_w:.0f} W")
    return parts


def _unread_gpu(environment: Environment) -> str:
    """Returns what is known of the GPU without NVML: the facts that torch has, but not how busy the GPU is."""
    facts = environment.torch
    if facts is None or not facts.device_name:
        return "no GPU seen"
    return f"{facts.device_name} {in_bytes(facts.device_bytes)} (load not read: nvidia-ml-py or its driver is missing)"


def note_lines(session: Session, ink: ConsoleStyle) -> Iterator[Text]:
    for index, note in enumerate(notes_of(session)):
        yield from wrapped("" if index else "notes", note, ink)


def notes_of(session: Session) -> list[str]:
    """Returns the notes without repetitions, and without notes that appear elsewhere in the report."""
    notes = all_notes(session)
    if session.summary:
        notes += session.summary.ceilings.notes
    if session.written:
        notes += _written(session)
    if session.passed_through:
        caches = ", ".join(session.passed_through)
        notes.append(f"Caches are shared with other programs: what the script wrote to {caches} stays.")
    shown = {warning(session), ceilings_reason(session.summary) if session.summary else ""}
    return [note for note in dict.fromkeys(notes) if note not in shown]


def _written(session: Session) -> Iterator[str]:
    """Yields sentences about the files that the script wrote: files that an overlay discarded, and files that stay."""
    had_overlay = session.command in ("check", "tune", "memory") and not session.no_overlay
    real = [path for path in session.written if path.startswith(_UNCOVERED) or not had_overlay]
    discarded = [path for path in session.written if path not in real]
    if discarded:
        command = _RUN.get(session.command, session.command)
        yield f"The script wrote {_names(session, discarded)}; discarded after the {command}."
    if real:
        names = _names(session, real)
        yield (
            f"The script or another program wrote {names}, which stays."
            if had_overlay
            else f"The script wrote {names}."
        )


def _names(session: Session, paths: Sequence[str]) -> str:
    rest = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ", ".join(relative(path, session.cwd) for path in paths[:3]) + rest
