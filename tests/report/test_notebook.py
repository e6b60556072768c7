"""The notebook's HTML: self-contained, well formed, escaped."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from slipstream.records import Session
from slipstream.report.notebook import to_html


class Balance(HTMLParser):
    """Fails if a closing tag has no opening tag."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", ["slow", "device", "healthy", "empty", "hostile"])
def test_it_is_well_formed_and_loads_nothing(sessions: dict[str, Session], name: str) -> None:
    html = to_html(sessions[name])
    balance = Balance()
    balance.feed(html)
    assert balance.open == []
    assert not balance.seen & {"script", "link", "img", "iframe"}
    assert "http" not in html


def test_text_of_the_script_is_escaped(sessions: dict[str, Session]) -> None:
    html = to_html(sessions["hostile"])
    assert "<b>&amp;</b>" not in html
    assert "&lt;b&gt;&amp;amp;&lt;/b&gt;" in html


def test_it_agrees_with_the_terminal(sessions: dict[str, Session]) -> None:
    html = to_html(sessions["slow"])
    assert "The step waits for data 65% of the time" in html
    assert "train.py:31" in html
    assert "up to 2.8x" in html
