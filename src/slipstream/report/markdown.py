"""A tuning or a fit as Markdown, for an issue, a pull request or a page: the sentence, the table, the reasons, and the
machine.

Text from the user's script is escaped, so that the text cannot become markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from slipstream.numbers import plural
from slipstream.records import Environment, Fitting, Session
from slipstream.report.text.check import script_of
from slipstream.report.text.fit import FIT_ALIGN, FIT_HEADINGS, fit_rows, remarks
from slipstream.report.text.fit import sentence as fit_sentence
from slipstream.report.text.printable import printable
from slipstream.report.text.tune import (
    HEADINGS,
    caveats,
    costs,
    gain,
    not_applicable,
    not_raced,
    reasons,
    table_rows,
    worths,
    writable,
)

_ALIGN = "lrrrrrlll"


def to_markdown(session: Session) -> str:
    """Returns the session as Markdown. Raises ValueError for a session that is neither a tuning nor a fit."""
    if session.fitting is not None:
        return "\n".join(_fitting_lines(session, session.fitting)) + "\n"
    if session.tuning is None:
        raise ValueError(f"only a tuning has a table to share; this session is a {session.command}")
    return "\n".join(_lines(session)) + "\n"


def _lines(session: Session) -> Iterator[str]:
    tuning = session.tuning
    assert tuning is not None
    yield f"**{_plain(gain(session))}**"
    for sentence in caveats(session):
        yield f"\n{_plain(sentence)}"
    yield ""
    rows = [row.cells for row in table_rows(tuning)]
    columns = [index for index in range(len(HEADINGS)) if any(row[index] for row in rows)]
    yield _row(HEADINGS[index] for index in columns)
    yield "|" + "|".join("---:" if _ALIGN[index] == "r" else "---" for index in columns) + "|"
    for row in rows:
        yield _row(_plain(row[index]) for index in columns)
    listed = [*worths(tuning), *writable(tuning), *costs(tuning), *reasons(tuning), *not_raced(tuning)]
    if listed:
        yield ""
    for name, sentence in listed:
        yield f"- `{printable(name).replace('`', chr(39))}`: {_plain(sentence)}"
    if folded := not_applicable(tuning):
        yield f"\nNot applicable: {_plain('; '.join(f'{names}: {reason}' for names, reason in folded))}."
    yield f"\n<sub>{_plain(_basis(session))}</sub>"


def _fitting_lines(session: Session, fitting: Fitting) -> Iterator[str]:
    yield f"**{_plain(fit_sentence(fitting))}**"
    yield ""
    yield _row(iter(FIT_HEADINGS))
    yield "|" + "|".join("---:" if side == "r" else "---" for side in FIT_ALIGN) + "|"
    for row in fit_rows(fitting):
        yield _row(_plain(cell) for cell in row.cells)
    for each in remarks(fitting):
        yield f"\n{_plain(each)}"
    yield f"\n<sub>{_plain('; '.join([f'slipstream tune {script_of(session)}', *_machine(session.environment)]))}</sub>"


def _row(cells: Iterator[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _basis(session: Session) -> str:
    environment = session.environment
    parts = [
        f"slipstream {environment.slipstream} tune {script_of(session)}",
        *_machine(environment),
        "relative to base: base step divided by step, with its 95% interval, from trials that took turns",
        "own gain: relative to the recipe that the technique was raced on",
    ]
    return "; ".join(parts)


def _machine(environment: Environment) -> Iterator[str]:
    yield f"{environment.cpu}, {environment.num_usable:g} of {plural(environment.num_logical, 'core')}"
    yield from (gpu.name for gpu in environment.gpus)
    if environment.torch is not None:
        yield f"torch {environment.torch.version} on {environment.torch.device or 'cpu'}"


def _plain(text: str) -> str:
    """Returns the text on one line. Characters that Markdown, HTML or a terminal would interpret are escaped."""
    text = printable(" ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_|\[\]~#])", r"\\\1", text)
