"""The input phase and the phase `other` on a terminal: a table of stages, with the user's hottest line of each
stage."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from slipstream.diagnose.steps.selection import training_loader
from slipstream.diagnose.steps.training_time import epoch_wait_ms
from slipstream.numbers import in_ms, in_percent, plural
from slipstream.records import Session, Summary
from slipstream.report.terminal import layout
from slipstream.report.terminal.console import ConsoleStyle, style_of, styled
from slipstream.report.terminal.layout import MARGIN, heading
from slipstream.report.text.locations import relative
from slipstream.report.text.stages import StageTable, input_stages, main_stages

NUM_STAGES = 4
# A phase with a smaller share of the step gets no table of its own.
WORTH_A_TABLE = 0.1
_WORTH_A_ROW = 0.015  # the smallest share of its phase with which a stage gets a row


def stage_lines(session: Session, summary: Summary, ink: ConsoleStyle) -> Iterator[Text]:
    """Yields a table for the input phase and one for the phase `other`, each only if the phase is a relevant part of
    the step."""
    for phase, found in (("input", input_stages(session)), ("other", main_stages(session, "other"))):
        if found is None or not matters(found, summary):
            continue
        yield heading(phase, basis(found, summary.phases[phase]), ink)
        yield from _stage_rows(found, session, summary, ink)


def matters(found: StageTable, summary: Summary) -> bool:
    taken_ms = found.total_ms if found.is_average else summary.phases.get(found.phase, 0.0)
    return taken_ms >= WORTH_A_TABLE * summary.step_ms


def basis(found: StageTable, wait_ms: float) -> str:
    """Returns what the times in a table of stages refer to."""
    if not found.num_workers:
        which = "a step on average" if found.is_average else "a step"
        samples = plural(found.num_samples, "sample")
        return f"{in_ms(found.total_ms)} {which} in the main process, from {samples} of its stack"
    workers = plural(found.num_workers, "worker")
    return f"{in_ms(found.total_ms)} of work a step for {workers}; the step waits {in_ms(wait_ms)}"


def _stage_rows(found: StageTable, session: Session, summary: Summary, ink: ConsoleStyle) -> list[Text]:
    rows: list[list[layout.Cell]] = []
    for share in [each for each in found.stages if each.share >= _WORTH_A_ROW][:NUM_STAGES]:
        row: list[layout.Cell] = [share.stage, ink.text(in_ms(share.ms), style_of(found.phase))]
        row.append(styled(f"{in_percent(share.share):>4}", "dim"))
        if share.line:
            place = ink.tail(f"{relative(share.line.file, session.cwd)}:{share.line.line}", ink.width // 3)
            of = f"  {in_ms(share.line.ms)} of it" if share.line.ms < 0.95 * share.ms else ""
            room = ink.width - len(place) - 40
            of = of if room - len(of) >= 16 else ""
            source = ink.clip(share.line.expression, max(room - len(of), 4))
            row.append(ink.text(place, "cyan") + Text(f"  {source}" if source else "") + ink.text(of, "dim"))
        else:
            row.append(styled("no line of your code", "dim"))
        rows.append(row)
    first_ms = first_batch_ms(found, session, summary)
    if first_ms:
        note = styled(f"more for the first batch of an epoch{why_first(session)}", "dim")
        rows.append(["first", ink.text(in_ms(first_ms), style_of("input")), "", note])
    return layout.rows(rows, "lrrl", ink, indent=MARGIN)


def first_batch_ms(found: StageTable, session: Session, summary: Summary) -> float:
    """Returns the extra time of an epoch's first batch, or 0 if it is too small to report."""
    wait_ms = epoch_wait_ms(session, summary.phases.get("input", 0.0)) if found.phase == "input" else 0.0
    return wait_ms if wait_ms > summary.step_ms else 0.0


def why_first(session: Session) -> str:
    loader = training_loader(session)
    if loader is None or not loader.num_workers:
        return ""
    return ": the workers have no batch ready yet" if loader.persistent_workers else ": the workers start"
