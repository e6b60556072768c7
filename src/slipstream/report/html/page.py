"""Assembles the page: decides which sections a session has and in which order, and renders the template.

Numbers and sentences come from the functions that the terminal report uses.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

import msgspec
from jinja2 import Environment as Templates
from jinja2 import FileSystemLoader, StrictUndefined
from markupsafe import Markup

from slipstream.records import Session, Summary, Tuning
from slipstream.report.html.chart import Chart, Table, Terms
from slipstream.report.html.environment import commands, facts
from slipstream.report.html.findings import FindingCard, Reader, cards, read_source
from slipstream.report.html.gpu_chart import device_charts
from slipstream.report.html.headline_numbers import Figure, figures
from slipstream.report.html.loss_chart import loss_charts
from slipstream.report.html.memory_growth import memory_chart
from slipstream.report.html.memory_owners import holder_charts
from slipstream.report.html.memory_remedies import remedy_charts
from slipstream.report.html.memory_timeline import live_chart, peaks_chart
from slipstream.report.html.phase_chart import phase_chart
from slipstream.report.html.race_timeline import timing_chart
from slipstream.report.html.stage_chart import stage_charts
from slipstream.report.html.step_chart import step_chart
from slipstream.report.html.svg import clean
from slipstream.report.html.tables import class_chart, fit_table, module_table, operator_table, tune_table, whys
from slipstream.report.html.timeline import timeline_chart
from slipstream.report.html.verdict_chart import verdict_chart
from slipstream.report.html.waterfall import waterfall_chart
from slipstream.report.terminal.footer import notes_of
from slipstream.report.text.check import basis, complaint, evaluation, script_of, verdict, warning
from slipstream.report.text.fit import remarks
from slipstream.report.text.fit import sentence as fit_sentence
from slipstream.report.text.memory import MEMORY, growth_sentence, summarise
from slipstream.report.text.tune import caveats, from_the_check, gain

_FOLDER = Path(__file__).parent / "templates"


class Section(msgspec.Struct, frozen=True):
    """A heading and its content. A section without content is left out."""

    ident: str
    title: str
    charts: list[Chart] = []
    tables: list[Table] = []
    cards: list[FindingCard] = []
    lists: list[Terms] = []
    sentences: list[str] = []

    @property
    def is_empty(self) -> bool:
        return not (self.charts or self.tables or self.cards or self.lists or self.sentences)


class Head(msgspec.Struct, frozen=True):
    command: str
    script: str
    basis: str
    moment: str
    headline: str
    warnings: list[str]
    caveats: list[str]
    figures: list[Figure]


def to_page(session: Session, read: Reader = read_source) -> str:
    """Returns one self-contained HTML document."""
    script = (_FOLDER / "script.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = _templates().get_template("page.html")
    return template.render(
        head=_head(session),
        sections=[section for section in _sections(session, read) if not section.is_empty],
        facts=facts(session),
        commands=commands(session),
        notes=notes_of(session),
        version=session.environment.slipstream,
        script=Markup(script),
        script_digest=digest,
    )


def _templates() -> Templates:
    return Templates(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _head(session: Session) -> Head:
    warnings = [sentence for sentence in (warning(session), _growing(session)) if sentence]
    if said := complaint(session):
        warnings.insert(0, said)
    return Head(
        session.command,
        script_of(session),
        basis(session),
        _moment(session.created),
        _sentence(session),
        warnings,
        list(caveats(session)),
        figures(session),
    )


def _sentence(session: Session) -> str:
    if session.fitting:
        return fit_sentence(session.fitting)
    return summarise(session) if session.command == MEMORY else gain(session) or verdict(session)


def _growing(session: Session) -> str:
    sentence = growth_sentence(session)
    return f"{sentence[0].upper()}{sentence[1:]}." if sentence else ""


def _moment(created: str) -> str:
    """Returns an ISO 8601 time as "2026-01-02 03:04 UTC". Other text is returned unchanged."""
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return created
    return moment.strftime("%Y-%m-%d %H:%M %Z").rstrip()


def _sections(session: Session, read: Reader) -> Iterator[Section]:
    summary, tuning = session.summary, session.tuning
    if session.fitting is not None:
        tables, sentences = [fit_table(session.fitting)], list(remarks(session.fitting))
        yield Section("fit", "What fits", tables=tables, sentences=sentences)
    if tuning is not None:
        yield from _tuned(session, tuning)
    if summary is not None and summary.num_steps > 0:
        yield _step(session, summary)
        yield Section(
            "findings", "Findings of the check" if tuning is not None else "Findings", cards=cards(session, read)
        )
        yield Section("input", "Input and other stages", charts=stage_charts(session, summary))
        yield _model(session, summary)
    if session.footprints:
        peaks = peaks_chart(session.footprints[0])
        yield Section("footprint", "The memory of a step", charts=_some(live_chart(session), peaks))
        yield Section("holders", "What owns the bytes at the peak", charts=holder_charts(session))
        yield Section("fitting", "How to use less, and what fits", charts=remedy_charts(session))
    yield Section("resources", "Memory and devices", charts=[*_some(memory_chart(session)), *device_charts(session)])


def _some(*charts: Chart | None) -> list[Chart]:
    return [chart for chart in charts if chart is not None]


def _tuned(session: Session, tuning: Tuning) -> Iterator[Section]:
    table = tune_table(tuning)
    yield Section("gain", "What it gained", charts=_some(waterfall_chart(session)))
    yield Section("tried", "What was tried", charts=_some(verdict_chart(session)), tables=[table], lists=whys(tuning))
    yield Section("proof", "The races and the losses", charts=[*_some(timing_chart(tuning)), *loss_charts(tuning)])


def _step(session: Session, summary: Summary) -> Section:
    tuning = session.tuning
    charts: Iterable[Chart | None] = (
        phase_chart(session, summary),
        timeline_chart(session, summary),
        step_chart(session),
    )
    sentences = [verdict(session), from_the_check(tuning)] if tuning is not None else []
    sentences += [each for each in (evaluation(session),) if each]
    return Section(
        "step",
        "The step in the check" if tuning is not None else "The step",
        charts=_some(*charts),
        sentences=sentences,
    )


def _model(session: Session, summary: Summary) -> Section:
    anatomy = session.anatomy
    if anatomy is None:
        return Section("model", "The model")
    tables = [table for table in (module_table(anatomy), operator_table(anatomy)) if table is not None]
    return Section("model", "The model", charts=_some(class_chart(anatomy, summary, session.cwd)), tables=tables)
