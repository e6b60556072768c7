"""What lies under the step: stages of the input, the model's operators, evaluation, the machine, notes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.text import Text

from slipstream.diagnose.outlook import epoch_start_ms
from slipstream.records import Anatomy, Environment, Session, Summary
from slipstream.report import table
from slipstream.report.ink import Ink, style_of, styled
from slipstream.report.pace import ceilings_reason
from slipstream.report.place import relative, where
from slipstream.report.quantity import as_count, in_bytes, in_flops, in_ms, in_percent, plural
from slipstream.report.stages import StageTable, input_stages, main_stages
from slipstream.report.verdict import warning

NUM_OPERATORS = 5
NUM_STAGES = 4
# Below this share of the step a phase gets no table of its own.
_WORTH_A_TABLE = 0.1
_WORTH_A_ROW = 0.015  # of its phase


def stage_lines(session: Session, summary: Summary, ink: Ink) -> Iterator[Text]:
    """Input and other time by stage and line, each only where it is a part of the step that matters."""
    for phase, found in (("input", input_stages(session)), ("other", main_stages(session, "other"))):
        if found is None or summary.phases.get(phase, 0.0) < _WORTH_A_TABLE * summary.step_ms:
            continue
        yield _heading(phase, _basis(found, summary.phases[phase]), ink)
        yield from _stage_rows(found, session, summary, ink)


def _heading(word: str, rest: str, ink: Ink) -> Text:
    return styled(f" {word:<9}", "bold") + ink.text(rest, "dim")


def _basis(found: StageTable, wait_ms: float) -> str:
    if not found.num_workers:
        return f"{in_ms(found.total_ms)} a step in the main process, by {found.num_samples:,} samples of its stack"
    workers = plural(found.num_workers, "worker")
    return f"{in_ms(found.total_ms)} of work a step for {workers}; the step waits {in_ms(wait_ms)} for them"


def _stage_rows(found: StageTable, session: Session, summary: Summary, ink: Ink) -> list[Text]:
    rows: list[list[table.Cell]] = []
    for share in [each for each in found.stages if each.share >= _WORTH_A_ROW][:NUM_STAGES]:
        row: list[table.Cell] = [f"{share.stage}", ink.text(in_ms(share.ms), style_of(found.phase))]
        row.append(styled(f"{in_percent(share.share):>4}", "dim"))
        if share.line:
            place = f"{relative(share.line.file, session.cwd)}:{share.line.line}"
            of = f"  {in_ms(share.line.ms)} of it" if share.line.ms < 0.95 * share.ms else ""
            source = ink.clip(share.line.expression, max(ink.width - len(place) - len(of) - 40, 16))
            row.append(ink.text(place, "cyan") + Text(f"  {source}") + ink.text(of, "dim"))
        else:
            row.append(styled("no line of yours", "dim"))
        rows.append(row)
    first_ms = epoch_start_ms(session, summary.step_ms) if found.phase == "input" else 0.0
    if first_ms > summary.step_ms:
        why = ": workers start" if found.num_workers else ""
        note = styled(f"more for the first batch of an epoch{why}", "dim")
        rows.append(["first", ink.text(in_ms(first_ms), style_of("input")), "", note])
    return table.rows(rows, "lrrl", indent=10)


def anatomy_lines(anatomy: Anatomy, summary: Summary, cwd: str, ink: Ink) -> Iterator[Text]:
    """The split into classes, what stands out, the top operators."""
    total_ms = sum(anatomy.classes_ms.values())
    if total_ms <= 0:
        return
    parts = [_flops(anatomy, summary)] if anatomy.flops else []
    parts += [
        f"{_CLASS_WORDS.get(name, name)} {in_percent(ms / total_ms)}" for name, ms in _largest(anatomy.classes_ms)
    ]
    yield from _folded("model", parts, ink)
    calls = f"{as_count(anatomy.num_operators)} operator calls"
    yield from _folded("", [calls, *_modules(anatomy), *_remarks(anatomy, cwd)], ink)
    rows = _operator_rows(anatomy, ink)
    if rows:
        rows[0] += styled("  self / total", "dim")
    yield from rows


_CLASS_WORDS = {"contraction": "contractions", "normalisation": "normalisations", "elementwise": "element-wise"}


def _flops(anatomy: Anatomy, summary: Summary) -> str:
    """Achieved FLOP/s over the watched steps: the observed one is slowed down by its observer."""
    phases = summary.device_phases or summary.phases
    compute_ms = phases.get("forward", 0.0) + phases.get("backward", 0.0)
    rate = f" at {in_flops(anatomy.flops / compute_ms * 1000)}FLOP/s" if compute_ms > 0 else ""
    return f"{in_flops(anatomy.flops)}FLOP{rate}"


def _remarks(anatomy: Anatomy, cwd: str) -> Iterator[str]:
    if anatomy.padding_share:
        yield f"{in_percent(anatomy.padding_share)} of the tokens are padding"
    if anatomy.attentions:
        place = where(anatomy.attentions[0].site, cwd) or anatomy.attentions[0].path
        share = sum(attention.share for attention in anatomy.attentions)
        yield f"attention by hand at {place}, {in_percent(share)} of the forward pass"


def _modules(anatomy: Anatomy) -> Iterator[str]:
    """The three most expensive, own work only."""
    total_ms = sum(module.forward_ms + module.backward_ms for module in anatomy.modules)
    dearest = sorted(anatomy.modules, key=lambda module: -(module.forward_ms + module.backward_ms))
    for module in dearest[:3] if total_ms > 0 else []:
        share = in_percent((module.forward_ms + module.backward_ms) / total_ms)
        yield f"{module.path or 'the model itself'} ({module.class_name}) {share}"


def _folded(word: str, parts: Iterable[str], ink: Ink) -> Iterator[Text]:
    """A heading and its parts, on as many lines as they need."""
    for line in ink.fold(parts, ink.width - 11):
        yield _heading(word, line, ink)
        word = ""


def _largest(classes_ms: dict[str, float]) -> list[tuple[str, float]]:
    total_ms = sum(classes_ms.values())
    return sorted(((name, ms) for name, ms in classes_ms.items() if ms > 0.03 * total_ms), key=lambda item: -item[1])


def _operator_rows(anatomy: Anatomy, ink: Ink) -> list[Text]:
    """Self and total times, as the old bottleneck tool printed them; the device's only where it has any."""
    operators = anatomy.operators[:NUM_OPERATORS]
    on_device = any(operator.total_device_ms > 0 for operator in operators)
    rows: list[list[table.Cell]] = []
    for operator in operators:
        row: list[table.Cell] = [ink.clip(operator.name, max(ink.width - 66, 24)), f"{as_count(operator.count)} x"]
        row += _times("CPU", operator.self_cpu_ms, operator.total_cpu_ms, ink)
        row += _times("device", operator.self_device_ms, operator.total_device_ms, ink) if on_device else []
        rows.append(row)
    return table.rows(rows, "lr" + "r" * (2 if on_device else 1), indent=10) if rows else []


def _times(processor: str, self_ms: float, total_ms: float, ink: Ink) -> list[table.Cell]:
    return [ink.text(in_ms(self_ms)) + ink.text(f" / {in_ms(total_ms):>7} {processor}", "dim")]


def machine_lines(environment: Environment, ink: Ink) -> Iterator[Text]:
    """Two lines: the machine, and torch on it."""
    usable = f"{environment.num_usable:g} of {plural(environment.num_logical, 'core')} usable"
    memory_bytes = min(environment.memory_limit_bytes or environment.memory_bytes, environment.memory_bytes)
    parts = [environment.cpu, usable, f"{in_bytes(memory_bytes)} memory"]
    if environment.shm_bytes is not None:
        parts.append(f"/dev/shm {in_bytes(environment.shm_bytes)}")
    parts += [f"{environment.disk_kind} disk"] if environment.disk_kind not in ("unknown", "") else []
    yield from _folded("machine", parts, ink)
    yield from _folded("", _software(environment), ink)


def _software(environment: Environment) -> list[str]:
    parts = []
    if facts := environment.torch:
        parts.append(f"torch {facts.version} {facts.cpu_capability}".rstrip())
        parts.append(f"model on {facts.device or 'cpu'}")
        parts.append(plural(facts.num_threads, "thread"))
    parts += [f"{gpu.name} {in_bytes(gpu.memory_bytes)}" for gpu in environment.gpus] or ["no GPU seen"]
    if readings := environment.readings:
        busy = sum(reading.utilisation for reading in readings) / len(readings)
        power_w = sum(reading.power_w for reading in readings) / len(readings)
        parts.append(f"GPU busy {in_percent(busy)}, {power_w:.0f} W")
    return parts


def note_lines(session: Session, ink: Ink) -> Iterator[Text]:
    notes = list(session.notes)
    if session.summary:
        notes += session.summary.ceilings.notes
    if session.written:
        names = ", ".join(relative(path, session.cwd) for path in session.written[:3])
        rest = f" and {len(session.written) - 3} more" if len(session.written) > 3 else ""
        notes.append(f"The script wrote {names}{rest}.")
    shown = {warning(session), ceilings_reason(session.summary) if session.summary else ""}
    for index, note in enumerate(note for note in dict.fromkeys(notes) if note not in shown):
        lines = ink.wrap(note, 10, "dim")
        if lines and not index:
            lines[0] = _heading("notes", "", ink) + lines[0][10:]
        yield from lines
