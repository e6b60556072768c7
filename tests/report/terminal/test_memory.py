"""The memory of a step on every kind of console, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec
import pytest

from slipstream.records import Leak, Memory, Session, Site
from slipstream.report.json_export.export import export
from slipstream.report.terminal.session import render_brief, render_session
from slipstream.report.text.memory import summarise
from slipstream.testing.made_sessions import FILE, made_footprint, made_loader, made_session

Paint = Callable[..., str]


@pytest.fixture
def session(sessions: dict[str, Session]) -> Session:
    return msgspec.structs.replace(
        sessions["empty"],
        command="memory",
        script=["train.py"],
        footprints=[made_footprint(32, 60_000_000), made_footprint(16, 30_000_000)],
        leaks=[Leak("losses", 8, 32, Site(FILE, 42, "losses.append(loss)"))],
    )


def test_one_screen(session: Session, paint: Paint) -> None:
    text = paint(render_session, session)
    assert "Peak 76 MB in backward, reached by sum at net.py:14; 79% of it activations." in text
    assert "blocks.*.up" in text and "6 x Linear" in text
    assert "net.py:14" in text and "hidden = self.up" in text
    assert "32: 76 MB; 64: 136 MB; 128: 256 MB; largest that fits in 1 GB: 524" in text
    folded = " ".join(text.split())
    assert "every step leaves 2 MB behind, made at net.py:14" in folded
    assert "losses keeps 8 tensors with their graphs at train.py:42" in folded
    assert "6 x Block in blocks" in text and "checkpointing" in text
    assert len(text.splitlines()) < 45


def test_one_step_alone_is_not_called_every_step(session: Session, paint: Paint) -> None:
    unseen = msgspec.structs.replace(session, leaks=[])
    assert "the observed step left 2 MB behind, made at net.py:14; other steps were not observed" in " ".join(
        paint(render_session, unseen).split()
    )
    looks = [Memory(step, step, 2**30, 0, step, 50 + step) for step in range(10, 60, 10)]
    followed = msgspec.structs.replace(unseen, memory=looks)
    assert "every step leaves 2 MB behind" in paint(render_session, followed)


def test_a_batch_larger_than_the_data_is_reported_as_such(session: Session, paint: Paint) -> None:
    small = msgspec.structs.replace(session, loaders=[made_loader(num_samples=400)], steps=made_session().steps)
    assert "largest that fits in 1 GB: 524, more than all 400 samples" in paint(render_session, small, width=120)
    large = msgspec.structs.replace(session, loaders=[made_loader(num_samples=600)], steps=made_session().steps)
    assert "more than all" not in paint(render_session, large, width=120)


@pytest.mark.parametrize("width", [40, 60, 100, 200])
def test_no_line_is_too_long(session: Session, paint: Paint, width: int) -> None:
    for line in paint(render_session, session, width=width).splitlines():
        assert len(line) <= max(width, 72)


def test_what_the_caching_allocator_keeps(session: Session, paint: Paint) -> None:
    assert "reserved" not in paint(render_session, session)
    on_cuda = {"device": "cuda:0", "reserved_bytes": 400_000_000}
    for split, is_fragmented in ((10_000_000, False), (90_000_000, True)):
        footprint = msgspec.structs.replace(session.footprints[0], **on_cuda, split_bytes=split)
        text = paint(render_session, msgspec.structs.replace(session, footprints=[footprint]))
        folded = " ".join(text.split())
        assert f"400 MB reserved, {split // 1_000_000} MB of it free in pieces" in folded
        assert ("expandable_segments" in folded) is is_fragmented


def test_ascii_alone(session: Session, paint: Paint) -> None:
    assert "AAAA" in paint(render_session, session, encoding="ascii")


def test_nothing_observed(session: Session, paint: Paint) -> None:
    session = msgspec.structs.replace(session, footprints=[])
    assert "train for about six steps" in paint(render_session, session)
    assert json.loads(export(session))["memory"] is None


def test_quiet_is_the_sentence(session: Session, paint: Paint) -> None:
    assert paint(render_brief, session).strip() == summarise(session)


def test_json(session: Session) -> None:
    memory = json.loads(export(session))["memory"]
    assert sum(memory["kinds"].values()) == memory["peak_bytes"]
    assert memory["where"] == "net.py:14" and memory["largest_batch"] == 524
    assert [part["batch_size"] for part in memory["batches"]] == [16, 32, 64, 128]
    assert memory["batches"][1]["observed_bytes"] == memory["batches"][1]["peak_bytes"]
    assert memory["remedies"][0]["name"] == "checkpointing"
