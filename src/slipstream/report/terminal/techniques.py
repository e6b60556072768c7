"""Techniques, from their cards and docstrings: the list, one card in full, and the pages of docs/."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Final

from rich.console import Console
from rich.text import Text

from slipstream.records import NUMERICS
from slipstream.report.terminal import layout
from slipstream.report.terminal.console import ConsoleStyle, styled
from slipstream.report.terminal.layout import MARGIN, folded
from slipstream.techniques._core.card import Card
from slipstream.techniques._core.catalogue import Technique

CLASSES: Final = {
    "identical": "the same bits",
    "reordered": "the same mathematics, other rounding",
    "redrawn": "the same distribution, other random draws",
    "approximate": "lower precision",
    "different": "another training",
}
_UNASKED: Final = {
    "speed": "no finding of check; tune tries it because it may help",
    "memory": "too little memory",
    "fit": "too little memory, or a device that is not busy",
}
_RACED: Final = {
    "speed": "",
    "memory": "only if it is named with --only, or if the batch does not fit in --memory-limit, because it costs time",
    "fit": "never; tune --fit compares samples per second",
}
_MEMORY: Final = {"same": "as before", "less": "less than before", "more": "more than before"}


def ordered(known: Mapping[str, Technique]) -> Iterator[tuple[str, Technique]]:
    """Returns the techniques, ordered by the seam that they act on and then by numerics class, the strictest first."""
    seams = ("loader", "transfer", "module", "backward", "optimizer", "process")
    return iter(
        sorted(
            known.items(),
            key=lambda item: (seams.index(item[1].CARD.seam), NUMERICS.index(item[1].CARD.numerics), item[0]),
        )
    )


def opening(technique: Technique) -> str:
    """Returns the first paragraph of the technique's docstring. The paragraph says what the technique changes."""
    return " ".join(paragraphs(technique)[0].split())


def paragraphs(technique: Technique) -> list[str]:
    return [" ".join(part.split()) for part in inspect.cleandoc(technique.__doc__ or "").split("\n\n")] or [""]


def facts(card: Card) -> list[tuple[str, str]]:
    """Returns the card as names and values."""
    rows = [
        ("numerics", f"{card.numerics}: {CLASSES[card.numerics]}"),
        ("answers", ", ".join(card.causes) or _UNASKED[card.purpose]),
        ("memory", _MEMORY[card.memory]),
        ("acts on", card.seam),
    ]
    rows += [("needs", ", ".join(card.needs))] if card.needs else []
    rows += [("excludes", f"other techniques that claim {', '.join(card.claims)}")] if card.claims else []
    rows += [("kept", "only if it is named with --only")] if card.is_opt_in and card.purpose != "fit" else []
    rows += [("kept", "only by --fit --allow different")] if card.purpose == "fit" else []
    rows += [("raced", _RACED[card.purpose])] if _RACED[card.purpose] else []
    rows += [("proof", "by a separate trial that draws the base's random numbers")] if card.needs_proof else []
    return rows


def render_catalogue(known: Mapping[str, Technique], console: Console) -> None:
    ink = ConsoleStyle(console)
    heads = ("technique", "numerics", "what it does, and findings it addresses")
    cells: list[list[layout.Cell]] = [[ink.text(word, "dim") for word in heads]]
    room = max(ink.width - max(map(len, known)) - len("approximate") - 6, 20)
    for ident, technique in ordered(known):
        card = technique.CARD
        title = ink.clip(card.title + (f" (needs {', '.join(card.needs)})" if card.needs else ""), room)
        causes = ink.clip(", ".join(card.causes), max(room - len(title) - 2, 0)) if card.causes else ""
        what = Text(title) + ink.text(f"  {causes}" if len(causes) > 6 else "", "dim")
        cells.append([styled(ident, "bold"), ink.text(card.numerics), what])
    _print(layout.rows(cells, "lll", ink, indent=1), console)
    console.print()
    _print(
        ink.wrap("slipstream techniques ID shows one technique in full. slipstream tune tries those that apply.", 1),
        console,
    )


def render_card(ident: str, technique: Technique, console: Console) -> None:
    ink = ConsoleStyle(console)
    _print([styled(f" {ident}", "bold") + ink.text(f"  {technique.CARD.title}")], console)
    for paragraph in paragraphs(technique):
        console.print()
        _print(ink.wrap(paragraph, 1), console)
    console.print()
    for name, value in facts(technique.CARD):
        _print(folded(name, [value], ink) if len(value) < ink.width - MARGIN else ink.wrap(value, MARGIN), console)


def _print(lines: Iterator[Text] | list[Text], console: Console) -> None:
    for line in lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False, highlight=False, soft_wrap=True)


def techniques_table(known: Mapping[str, Technique]) -> str:
    lines = ["| technique | numerics | what it does | answers |", "|---|---|---|---|"]
    for ident, technique in ordered(known):
        causes = ", ".join(f"`{cause}`" for cause in technique.CARD.causes)
        lines.append(
            f"| [`{ident}`](techniques/{ident}.md) | {technique.CARD.numerics} | {opening(technique)} | {causes} |"
        )
    return "\n".join(lines) + "\n"


def technique_page(ident: str, technique: Technique) -> str:
    """Returns the whole text of docs/techniques/<id>.md."""
    lines = [f"# {ident}", "", f"**{technique.CARD.title}**", ""]
    for paragraph in paragraphs(technique):
        lines += [paragraph, ""]
    lines += ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts(technique.CARD)), ""]
    lines += [
        "```console",
        f"$ slipstream tune {'--fit' if technique.CARD.purpose == 'fit' else f'--only {ident}'} train.py",
        "```",
        "",
        "[All techniques](../techniques.md). This page is written from the technique's own file: `make docs`.",
    ]
    return "\n".join(lines) + "\n"
