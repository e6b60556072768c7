"""The page as text: well formed, complete, escaped, self-contained, and consistent with the terminal."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from slipstream.memory.remedies import list_remedies
from slipstream.numbers import as_gain, in_bytes, in_ms
from slipstream.records import Session
from slipstream.report.html.page import to_page
from slipstream.report.text.check import verdict
from slipstream.report.text.memory import about, line_holders, module_holders, summarise
from slipstream.report.text.tune import gain, reasons, table_rows

VOID = {"meta", "br", "img", "link", "input", "hr"}
MOST_BYTES = 6_000_000


class Page(HTMLParser):
    """Parses the page as a browser would. Fails if a closing tag has no opening tag."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.scripts if self.open[-1:] == ["script"] else self.words).append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def values(self, attribute: str) -> list[str]:
        return [found for _, attributes in self.elements if (found := attributes.get(attribute))]


def check_form(html: str) -> Page:
    """Checks what holds for every page."""
    page = Page(html)
    assert page.open == []
    assert len(page.values("id")) == len(set(page.values("id")))
    names = set(page.values("id"))
    for attribute in ("aria-labelledby", "aria-describedby"):
        assert all(set(found.split()) <= names for found in page.values(attribute))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert {"header", "nav", "main", "footer"} <= {tag for tag, _ in page.elements}
    return page


def check_alone(page: Page) -> None:
    """Nothing is loaded, and only slipstream's own scripts can run."""
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.elements}
    assert page.values("src") == [] and all(found.startswith("#") for found in page.values("href"))
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    [script] = page.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    [policy] = [found for found in page.values("content") if "default-src" in found]
    assert "default-src 'none'" in policy and f"script-src 'sha256-{digest}'" in policy


@pytest.mark.parametrize("name", ["slow", "device", "healthy", "empty", "hostile"])
def test_a_check(sessions: dict[str, Session], name: str) -> None:
    page = check_form(to_page(sessions[name]))
    check_alone(page)
    assert " ".join(verdict(sessions[name]).split())[:40] in page.text


def test_a_session_with_everything_has_every_part(full: Session) -> None:
    page = check_form(to_page(full))
    check_alone(page)
    parts = ("waterfall", "contenders", "blocks", "losses", "phases", "timeline", "steps", "findings", "stages-input")
    peak = ("live-bytes", "phase-peaks", "peak-modules", "peak-lines", "remedies", "batches")
    for part in (*parts, *peak, "operators", "memory", "utilisation", "power", "basis", "reproduce", "notes"):
        assert part in page.values("id"), part
    pictures = [attributes for _, attributes in page.elements if attributes.get("role") == "img"]
    assert len(pictures) == 18 and all(each.get("aria-labelledby") for each in pictures)


def test_it_agrees_with_the_terminal(sessions: dict[str, Session], full: Session) -> None:
    slow, tuning = sessions["slow"], full.tuning
    page = Page(to_page(slow))
    assert slow.summary is not None and tuning is not None
    for phase, ms in slow.summary.phases.items():
        assert ms == 0 or f"{phase} {in_ms(ms)}" in page.text
    for finding in slow.findings:
        assert as_gain(finding.predicted_gain) in page.text and finding.evidence in page.text
        assert finding.change in page.text
    tuned = Page(to_page(full))
    assert gain(full) in tuned.text
    for row in table_rows(tuning):
        assert " ".join(cell for cell in row.cells if cell) in tuned.text
    for name, reason in reasons(tuning):
        assert name in tuned.text and reason in tuned.text


def test_memory_agrees_with_the_terminal(memory: Session) -> None:
    page = check_form(to_page(memory))
    check_alone(page)
    footprint = memory.footprints[0]
    assert summarise(memory) in page.text and "batch of 32 · cpu" in page.text
    assert "The observed step left 2 MB behind, made at net.py:14" in page.text, "what grows stands above all else"
    for holder in (*module_holders(footprint), *line_holders(footprint, memory.cwd)):
        assert f"{holder.name} {holder.about} {in_bytes(holder.kinds.total())}" in page.text
    for remedy in list_remedies(footprint):
        assert remedy.name in page.text and about(remedy) in page.text
    assert "activations 60 MB 79%" in page.text and "64 samples 136 MB, predicted" in page.text
    names = ",".join(remedy.name for remedy in list_remedies(footprint))
    assert "micro_batches" in names and f"slipstream tune --only {names} train.py" in page.text


def test_memory_without_a_footprint_has_its_sentence(memory: Session) -> None:
    page = check_form(to_page(msgspec.structs.replace(memory, footprints=[])))
    assert "No step was observed" in page.text and "live-bytes" not in page.values("id")


def test_no_text_becomes_markup(attack: Session) -> None:
    html = to_page(attack)
    page = check_form(html)
    check_alone(page)
    assert "window.pwned = 1</script>" in page.text and "{{ 7 * 7 }}" in page.text
    assert page.text.count("<img src=x") > 20, "it stands there as text, in every place that shows it"
    assert not {char for char in html if ord(char) < 32} - {"\n", "\t"}
    assert "\u202e" not in html and html.encode("utf-8")


def test_it_is_small(long_page: str) -> None:
    check_form(long_page)
    size = len(long_page.encode())
    print(f"{size / 1e6:.2f} MB")
    assert size < MOST_BYTES


def test_times_that_are_odd_do_not_break_it(full: Session) -> None:
    """The session has no steps, a single step, or steps of length zero."""
    assert full.tuning is not None
    bare = msgspec.structs.replace(full, steps=[], events=[], memory=[], anatomy=None, summary=None)
    check_form(to_page(bare))
    check_form(to_page(msgspec.structs.replace(full, steps=full.steps[:1], memory=full.memory[:1])))
    still = [msgspec.structs.replace(step, step_ms=0.0, phases={}) for step in full.steps]
    check_form(to_page(msgspec.structs.replace(full, steps=still)))
    no_timings = [msgspec.structs.replace(trial, timings=[]) for trial in full.tuning.trials]
    check_form(to_page(msgspec.structs.replace(full, tuning=msgspec.structs.replace(full.tuning, trials=no_timings))))


def test_it_needs_no_torch(full: Session, tmp_path: Path) -> None:
    path = tmp_path / "session.msgpack"
    path.write_bytes(msgspec.msgpack.encode(full))
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from slipstream.store.sessions import load_session\n"
        "from slipstream.report.html.page import to_page\n"
        "print(len(to_page(load_session(Path(sys.argv[1])))))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10_000
