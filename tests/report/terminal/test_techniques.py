"""The list of techniques, and the card of a technique."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rich.cells import cell_len

from slipstream.records import Session
from slipstream.report.terminal.techniques import (
    facts,
    ordered,
    render_card,
    render_catalogue,
    technique_page,
    techniques_table,
)
from slipstream.techniques._core.card import Card
from slipstream.techniques._core.catalogue import catalogue

Paint = Callable[..., str]


@pytest.mark.parametrize("width", [80, 100])
def test_the_list_has_every_technique_on_a_line(sessions: dict[str, Session], paint: Paint, width: int) -> None:
    text = paint(lambda _, console: render_catalogue(catalogue(), console), sessions["slow"], width=width)
    named = [line.split()[0] for line in text.splitlines() if line.strip()]
    assert set(catalogue()) <= set(named)
    assert all(cell_len(line) <= width for line in text.splitlines())
    assert "Worker processes for the loader  no_worker" in text  # the last letter may not fit


@pytest.mark.parametrize("ident", catalogue())
def test_a_card_in_full(sessions: dict[str, Session], paint: Paint, ident: str) -> None:
    technique = catalogue()[ident]
    text = paint(lambda _, console: render_card(ident, technique, console), sessions["slow"], width=80)
    assert text.startswith(f" {ident}  {technique.CARD.title}")
    assert f"numerics {technique.CARD.numerics}" in text
    assert all(cell_len(line) <= 80 for line in text.splitlines())
    page = technique_page(ident, technique)
    option = "--fit" if technique.CARD.purpose == "fit" else f"--only {ident}"
    assert f"slipstream tune {option} train.py" in page
    assert f"`{ident}`](techniques/{ident}.md)" in techniques_table(catalogue())


def test_what_a_card_says() -> None:
    card = Card("T", "module", ("slow",), "approximate", "less", ("cuda",), ("autocast",), True, True)
    assert dict(facts(card)) == {
        "numerics": "approximate: lower precision",
        "answers": "slow",
        "memory": "less than before",
        "acts on": "module",
        "needs": "cuda",
        "excludes": "other techniques that claim autocast",
        "kept": "only if it is named with --only",
        "proof": "by a separate trial that draws the base's random numbers",
    }


def test_the_order_is_by_place_then_strictness() -> None:
    assert next(ident for ident, _ in ordered(catalogue())) == "batched_fetch"
