"""The result of a fit in words, on a terminal, as Markdown and as JSON."""

from __future__ import annotations

import io
import json

import msgspec
import pytest
from rich.console import Console

from slipstream.numbers import in_binary
from slipstream.records import Choice, FitAttempt, Fitting, Recipe, Session
from slipstream.records.race import Speed
from slipstream.report.html.page import to_page
from slipstream.report.json_export.export import export
from slipstream.report.markdown import to_markdown
from slipstream.report.terminal.session import render_brief, render_session
from slipstream.report.text.fit import fit_rows, learning_rate_question, sentence
from slipstream.testing.made_sessions import made_session

GIB = 1 << 30


def on(name: str, setting: object = True) -> Recipe:
    return Recipe((Choice(name, setting),))  # type: ignore[arg-type]


BASE = FitAttempt(32, is_held=False, peak_bytes=2 * GIB, step_ms=100.0, samples_per_s=320.0, rate=Speed(1.0, 1.0, 1.0))
BATCHES = Fitting(
    6 * GIB,
    "--memory-limit",
    "cpu",
    32,
    True,
    attempts=[
        BASE,
        FitAttempt(32, peak_bytes=2 * GIB),
        FitAttempt(104, outcome="ran_out"),
        FitAttempt(103, peak_bytes=6 * GIB),
        FitAttempt(96, peak_bytes=5 * GIB),
        FitAttempt(96, peak_bytes=5 * GIB, samples_per_s=400.0, step_ms=240.0, rate=Speed(1.25, 1.2, 1.3, 12)),
        FitAttempt(64, peak_bytes=4 * GIB, samples_per_s=420.0, step_ms=152.0, rate=Speed(1.31, 1.28, 1.35, 12)),
    ],
    largest=96,
    too_large=104,
    fastest=64,
)
REMEDIES = Fitting(
    GIB,
    "--memory-limit",
    "cpu",
    32,
    False,
    attempts=[
        BASE,
        FitAttempt(32, outcome="ran_out"),
        FitAttempt(32, on("micro_batches", 4), peak_bytes=GIB, rate=Speed(1 / 1.31, 0.7, 0.8, 12)),
        FitAttempt(32, on("checkpointing", "half"), peak_bytes=GIB, rate=Speed(1 / 1.18, 0.8, 0.9, 12)),
        FitAttempt(32, on("other"), outcome="ran_out"),
    ],
    recipe=on("checkpointing", "half"),
)


def session_of(fitting: Fitting) -> Session:
    return msgspec.structs.replace(made_session(), command="tune", fitting=fitting)


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=110, no_color=True)


def test_sentences() -> None:
    assert sentence(BATCHES) == (
        "The script's batch of 32 fits in 6.00 GiB. The largest batch that runs is 96 (104 ran out), the fastest is 64:"
        " 420 samples/s, 1.31x 1.28–1.35 of 32's."
    )
    assert sentence(REMEDIES) == (
        "The script's batch of 32 does not fit in 1.00 GiB; checkpointing=half fits at 1.18x step time, micro_batches=4"
        " at 1.31x. Kept: checkpointing=half."
    )
    nothing = msgspec.structs.replace(REMEDIES, attempts=REMEDIES.attempts[:2], recipe=Recipe())
    assert sentence(nothing) == "The script's batch of 32 does not fit in 1.00 GiB without changes."
    unheld = FitAttempt(32, on("checkpointing", "all"), is_held=False, peak_bytes=3 * GIB)
    unmade = msgspec.structs.replace(
        nothing, attempts=[*nothing.attempts, FitAttempt(32, on("other"), outcome="ran_out"), unheld]
    )
    assert sentence(unmade) == (
        "The script's batch of 32 does not fit in 1.00 GiB, and nothing that was tried makes it fit:"
        " checkpointing=all needs the least memory, 3.00 GiB."
    )
    bare = FitAttempt(32, is_held=False, peak_bytes=2 * GIB)
    refused = msgspec.structs.replace(unmade, attempts=[bare, *unmade.attempts[:-1]])
    assert sentence(refused).endswith(
        "nothing that was tried makes it fit: unchanged it needs 2.00 GiB; --fit finds the largest batch that fits."
    )


def test_the_table_has_a_row_for_each_with_its_last_word(console: Console) -> None:
    render_session(session_of(BATCHES), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()[:1].isdigit() and "GiB" in line}
    assert "1.25x" in rows["96"] and "ran, largest" in rows["96"] and "fastest" in rows["64"]
    assert "no limit" in text and "ran out" in text and text.count("\n    96") == 1
    assert "private writable memory of the training process (RLIMIT_DATA)" in " ".join(text.split())
    assert "Decide whether to change the learning rate." in " ".join(text.split())


def test_brief_and_markdown(console: Console) -> None:
    render_brief(session_of(REMEDIES), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "Kept: checkpointing=half" in text and "learning rate" not in text
    page = to_markdown(session_of(REMEDIES))
    assert page.startswith("**The script's batch of 32 does not fit") and "| 32 | checkpointing=half |" in page


def test_the_page_has_the_sentence_and_the_table() -> None:
    page = to_page(session_of(BATCHES))
    assert "The script&#39;s batch of 32 fits in 6.00 GiB." in page and "What fits" in page
    assert "1.31x 1.28–1.35" in page and "Decide whether to change the learning rate." in page


def test_json() -> None:
    document = json.loads(export(session_of(BATCHES)))
    assert document["verdict"].startswith("The script's batch of 32 fits")
    fitting = document["fitting"]
    assert (fitting["largest"], fitting["fastest"], fitting["too_large"]) == (96, 64, 104)
    assert fitting["trials"][-1]["ratio"] == 1.31 and fitting["trials"][2]["outcome"] == "ran_out"


def test_the_question_is_put_and_not_answered() -> None:
    words = learning_rate_question(32, 128)
    assert "by 4 " in words and "by 2 " in words and "Decide whether" in words
    assert "slipstream changed neither" in words


def test_units_of_a_limit() -> None:
    sizes = (12, 6 * GIB, 400 << 20, 1 << 44)
    assert [in_binary(size) for size in sizes] == ["12 B", "6.00 GiB", "400 MiB", "16.0 TiB"]


def test_rows_say_by_fields_what_stands_out() -> None:
    rows = {row.cells[0]: row for row in fit_rows(BATCHES) if not row.cells[-1].startswith("no limit")}
    assert [name for name, row in rows.items() if row.has_run_out] == ["104"]
    assert [name for name, row in rows.items() if row.is_chosen] == ["64", "96"]
    kept = [row.cells[1] for row in fit_rows(REMEDIES) if row.is_chosen]
    assert kept == [str(REMEDIES.recipe)]
    unheld = FitAttempt(32, is_held=False, outcome="ran_out")
    assert not fit_rows(msgspec.structs.replace(BATCHES, attempts=[unheld]))[0].has_run_out, "there was no limit"
