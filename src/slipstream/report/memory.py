"""The memory of a step on a terminal: one screen, a function of the session. What fills the peak, when, whose it is,
what each remedy would free, and what other batches would need."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from slipstream.diagnose.growth import has_stopped
from slipstream.memory.forecast import Forecast, forecast
from slipstream.memory.remedies import list_remedies
from slipstream.records import Footprint, Leak, ModuleBytes, Moment, Session
from slipstream.report import bar, table
from slipstream.report.ink import Ink, style_of, styled
from slipstream.report.machine import machine_lines, note_lines
from slipstream.report.place import where
from slipstream.report.quantity import in_bytes, in_percent, plural
from slipstream.report.section import MARGIN, heading
from slipstream.report.verdict import ending, script_of

MEMORY = "memory"  # the command
_MOST_MODULES = 8
_MOST_LINES = 6
_LEAST_SHARE = 0.005  # of the peak, to have a row
_LEAST_GROWTH = 1024
_DOUBTFUL = 0.05
_SPLINTERED = 0.1  # of what is reserved
_WEIGHTS = ("parameters", "gradients", "optimizer_state")
_LEVELS, _PLAIN_LEVELS = "▁▂▃▄▅▆▇█", ".:-=+*%#"


def render_memory(session: Session, console: Console) -> None:
    ink = Ink(console)
    for lines in _sections(session, ink):
        for line in lines:
            console.print(line, no_wrap=True, overflow="ignore", crop=False, highlight=False, soft_wrap=True)


def summarise(session: Session) -> str:
    """The peak, and what fills it, in one sentence."""
    if not session.footprints:
        return "No step was observed: that takes about six steps of a training."
    footprint = session.footprints[0]
    kind, most = max(footprint.kinds.items(), key=lambda item: item[1])
    share = in_percent(most / footprint.peak_bytes) if footprint.peak_bytes else "0%"
    at = f" at {where(footprint.peak_site, session.cwd)}" if footprint.peak_site else ""
    made = f", reached by {_operator(footprint.peak_operator)}{at}" if footprint.peak_operator else at
    phase = "between the phases" if footprint.peak_phase == "other" else f"in {footprint.peak_phase}"
    return f"Peak {in_bytes(footprint.peak_bytes)} {phase}{made}; {share} of it {_words(kind)}."


def _sections(session: Session, ink: Ink) -> Iterator[Iterable[Text]]:
    yield _headline(session, ink)
    yield ink.wrap(summarise(session), 1, "bold")
    if session.footprints:
        footprint = session.footprints[0]
        yield [Text()]
        yield _peak(footprint, ink)
        yield _course(footprint, ink)
        yield [Text()]
        yield _modules(footprint, ink)
        yield _lines(footprint, session.cwd, ink)
        yield [Text()]
        yield _remedies(footprint, ink)
        yield _batches(session.footprints, ink)
        yield _growth(session, footprint, ink)
        yield _allocator(footprint, ink)
    yield [Text()]
    yield machine_lines(session.environment, ink)
    yield note_lines(session, ink)


def _headline(session: Session, ink: Ink) -> Iterator[Text]:
    left = styled(f" slipstream {ink.clean(session.command)}  ", "dim")
    left += styled(ink.clip(script_of(session), max(ink.width - left.cell_len - 1, 20)), "bold")
    parts = [ending(session)]
    if session.footprints:
        footprint = session.footprints[0]
        parts = [f"batch of {footprint.batch_size}" if footprint.batch_size else "", footprint.device, *parts]
    right = ink.clean(" · ".join(filter(None, parts)))
    blanks = ink.width - left.cell_len - len(right) - 1
    if blanks >= 2:
        yield left + Text(" " * blanks) + styled(right, "dim")
    else:
        yield left
        yield styled(f" {right}", "dim")
    if session.ending.reason == "raised" and session.ending.message:
        yield styled(f" {ink.clip(session.ending.message, ink.width - 2)}", "red")


def _peak(footprint: Footprint, ink: Ink) -> Iterator[Text]:
    cells = _cells(ink)
    drawn = bar.stacked(footprint.kinds, footprint.peak_bytes, cells, ink)
    yield heading("peak", "", ink) + drawn + ink.text(f"  {in_bytes(footprint.peak_bytes)}", "bold")
    line = Text(" " * MARGIN)
    for kind, num_bytes in footprint.kinds.items():
        if num_bytes <= 0:
            continue
        glyph = "■" if ink.has_colour and ink.has_unicode else ink.phase_glyph(kind)
        entry = styled(glyph, style_of(kind)) + Text(f" {_words(kind)} ")
        entry += ink.text(f"{in_bytes(num_bytes)} {in_percent(num_bytes / footprint.peak_bytes)}", "dim")
        if line.cell_len + entry.cell_len > ink.width and line.plain.strip():
            line.rstrip()
            yield line
            line = Text(" " * MARGIN)
        line = line + entry + Text("   ")
    line.rstrip()
    yield line


def _course(footprint: Footprint, ink: Ink) -> Iterator[Text]:
    """The live bytes over the step, coloured by phase, and the peak of each phase."""
    line = Text()
    levels = _LEVELS if ink.has_unicode else _PLAIN_LEVELS
    for moment in _spread(footprint, _cells(ink)):
        share = sum(moment.num_bytes) / max(1, footprint.peak_bytes)
        line.append(levels[min(len(levels) - 1, int(share * len(levels)))], style=style_of(moment.phase))
    yield heading("step", "", ink) + line
    named = {phase: sum(kinds.values()) for phase, kinds in footprint.phases.items() if phase != "other"}
    peaks = [f"{phase} {in_bytes(most)}" for phase, most in named.items()]
    for folded in ink.fold([f"at the most: {peaks[0]}", *peaks[1:]] if peaks else [], ink.width - MARGIN - 1):
        yield heading("", folded, ink)


def _spread(footprint: Footprint, cells: int) -> Iterator[Moment]:
    """The highest moment of every cell; where nothing was allocated, the one before."""
    last = Moment(0.0, "other", [0])
    moments = list(footprint.moments)
    for cell in range(cells):
        until_ms = footprint.step_ms * (cell + 1) / cells
        inside = []
        while moments and (moments[0].at_ms <= until_ms or cell == cells - 1):
            inside.append(moments.pop(0))
        if inside:
            last = max(inside, key=lambda moment: sum(moment.num_bytes))
        yield last
        last = inside[-1] if inside else last


def _modules(footprint: Footprint, ink: Ink) -> Iterator[Text]:
    rows: list[list[str]] = []
    for name, class_name, kinds in grouped(footprint.modules)[:_MOST_MODULES]:
        total = kinds.total()
        weights = sum(kinds[kind] for kind in _WEIGHTS)
        parts = (("activations", kinds["activations"]), ("temporary", kinds["temporary"]), ("weights", weights))
        detail = ", ".join(f"{word} {in_bytes(size)}" for word, size in parts if size >= 0.1 * total)
        if total >= _LEAST_SHARE * footprint.peak_bytes:
            share = in_percent(total / footprint.peak_bytes)
            rows.append([ink.tail(name or "(the model)", 30), ink.clip(class_name, 24), in_bytes(total), share, detail])
    yield from _table("modules", rows, "llrrl", ink)


def grouped(modules: list[ModuleBytes]) -> list[tuple[str, str, Counter[str]]]:
    """Repeated modules as one: blocks.0.up to blocks.5.up are blocks.*.up."""
    sums: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    paths: Counter[tuple[str, str]] = Counter()
    for module in modules:
        key = (re.sub(r"(?<![^.])\d+(?![^.])", "*", module.path), module.class_name)
        sums[key].update(module.kinds)
        paths[key] += 1
    ranked = sorted(sums, key=lambda key: -sums[key].total())
    return [
        (path, f"{paths[path, name]} x {name}" if paths[path, name] > 1 else name, sums[path, name])
        for path, name in ranked
    ]


def _lines(footprint: Footprint, cwd: str, ink: Ink) -> Iterator[Text]:
    rows: list[list[str]] = []
    for line in footprint.lines[:_MOST_LINES]:
        total = sum(line.kinds.values())
        if total >= _LEAST_SHARE * footprint.peak_bytes:
            share = in_percent(total / footprint.peak_bytes)
            rows.append([ink.tail(where(line.site, cwd), 34), in_bytes(total), share, line.site.text])
    yield from _table("lines", rows, "lrrl", ink)


def _remedies(footprint: Footprint, ink: Ink) -> Iterator[Text]:
    rows: list[list[str]] = []
    for remedy in list_remedies(footprint):
        left = in_bytes(footprint.peak_bytes - remedy.freed_bytes)
        about = f"{remedy.what} · {remedy.numerics}; {remedy.price}"
        rows.append([remedy.name, f"-{in_bytes(remedy.freed_bytes)}", ink.clean(f"→ {left}"), about])
    yield from _table("frees", rows, "lrrl", ink)


def _batches(footprints: list[Footprint], ink: Ink) -> Iterator[Text]:
    made = forecast(footprints)
    if made is None:
        return
    yield from _titled("batch", ink.wrap(batch_sentence(made), MARGIN), ink)


def batch_sentence(made: Forecast) -> str:
    """ "32: 83 MB; 64: 150 MB; 128: 290 MB; largest that fits in 23 GB: 10,400"."""
    own = max(made.observed)
    sizes = "; ".join(f"{size}: {in_bytes(made.peak_bytes(size))}" for size in (own, 2 * own, 4 * own))
    largest = made.largest_batch()
    fits = f"; largest that fits in {in_bytes(made.capacity_bytes)}: {largest:,}" if largest else ""
    error = made.error or 0.0
    doubt = f" (the rule missed an observed size by {in_percent(error)})" if error > _DOUBTFUL else ""
    return f"{sizes}{fits}{doubt}"


def _growth(session: Session, footprint: Footprint, ink: Ink) -> Iterator[Text]:
    sums = [leak for leak in session.leaks if leak.is_sum]
    growth, stopped = footprint.growth, has_stopped(session.memory)
    leaks = session.leaks if stopped is None else sums  # what has stopped growing was none
    if growth is not None and stopped is not None:
        made = f", made at {where(growth.site, session.cwd)}" if growth.site is not None else ""
        left = f"the observed step left {in_bytes(growth.num_bytes)} behind{made}"
        sentence = f"{left}; that stopped after step {stopped}: a cache"
        yield from _titled("cached", ink.wrap(sentence, MARGIN), ink)
    elif growth is not None and (growth.num_bytes >= _LEAST_GROWTH or leaks):
        sentence = f"every step leaves {in_bytes(growth.num_bytes)} behind"
        if growth.site is not None:
            sentence += f", made at {where(growth.site, session.cwd)}"
        leaked = [_leaked(leak, session.cwd) for leak in leaks]
        yield from _titled("growing", ink.wrap("; ".join([sentence, *leaked]), MARGIN, "yellow"), ink)
        return
    if sums:
        leaked = [_leaked(leak, session.cwd) for leak in sums]
        yield from _titled("growing", ink.wrap("; ".join(leaked), MARGIN, "yellow"), ink)


def _leaked(leak: Leak, cwd: str) -> str:
    at = f" at {where(leak.site, cwd)}" if leak.site else ""
    if leak.is_sum:
        return f"{leak.name} adds up {plural(leak.num_tensors, 'step')} with their graphs{at}"
    graphs = " with their graphs" if leak.has_graph else ""
    return f"{leak.name} keeps {plural(leak.num_tensors, 'tensor')}{graphs}{at}"


def _allocator(footprint: Footprint, ink: Ink) -> Iterator[Text]:
    """Only accelerators have one that keeps memory."""
    if footprint.reserved_bytes:
        split = footprint.split_bytes
        whole = in_bytes(footprint.reserved_bytes)
        kept = f"{whole} by the allocator, {in_bytes(split)} of it free in pieces of split blocks"
        if split >= _SPLINTERED * footprint.reserved_bytes:
            kept += ": splintered; expandable_segments lets segments grow instead"
        yield from _titled("reserved", ink.wrap(kept, MARGIN), ink)


def _table(word: str, rows: list[list[str]], align: str, ink: Ink) -> Iterator[Text]:
    """The last column has the room that the others leave."""
    used = sum(max((cell_len(row[index]) for row in rows), default=0) + 2 for index in range(len(align) - 1))
    room = max(12, ink.width - MARGIN - used - 1)
    cells: list[list[table.Cell]] = [[*row[:-1], styled(ink.clip(row[-1], room), "dim")] for row in rows]
    yield from _titled(word, table.rows(cells, align, indent=MARGIN), ink)


def _titled(word: str, lines: list[Text], ink: Ink) -> Iterator[Text]:
    for index, line in enumerate(lines):
        yield line if index else heading(word, "", ink) + line[MARGIN:]


def _cells(ink: Ink) -> int:
    return max(min(ink.width, 110) - MARGIN - 14, 12)


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _operator(name: str) -> str:
    return name.removeprefix("aten::")
