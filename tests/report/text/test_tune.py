"""The table of a tuning: the base first, the ceiling last, and the same rows in every form."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len

from slipstream.diagnose import diagnose
from slipstream.numbers import as_ratio, between_ratios
from slipstream.records import Choice, Length, Recipe, Session, Site, Speed, TrialRecord, TrialSpec
from slipstream.records.race import FARTHEST
from slipstream.report.exports.scalars import values
from slipstream.report.html.page import to_page
from slipstream.report.html.tables import whys
from slipstream.report.html.verdict_chart import entries_of
from slipstream.report.html.waterfall import rungs_of
from slipstream.report.json_export.export import export
from slipstream.report.markdown import to_markdown
from slipstream.report.notebook import tuning_to_html
from slipstream.report.terminal.session import render_brief, render_session
from slipstream.report.text.tune import CEILING, gain, measured, table_rows, worths
from slipstream.report.text.verdicts import reason_of
from slipstream.store.index import entries
from slipstream.store.sessions import save_session
from slipstream.testing.made_sessions import made_session
from slipstream.testing.made_verdicts import BASE_MS, BASE_RATE, made_tuning, made_verdict, tuned

Paint = Callable[..., str]
Sessions = dict[str, Session]


@pytest.fixture
def session(sessions: Sessions) -> Session:
    return tuned(sessions["slow"])


def nothing_kept(session: Session) -> Session:
    verdicts = [v for v in made_tuning().verdicts if v.kind == "single" and v.decision != "kept"]
    return tuned(session, verdicts=verdicts, recipe=Recipe(), total=None, seconds_after=None)


def test_rows_go_from_the_base_to_the_ceiling(session: Session) -> None:
    assert session.tuning is not None
    rows = table_rows(session.tuning)
    assert [row.name for row in rows] == [
        "as it is",
        "nothing (A/A)",
        "workers=1",
        "workers=2",
        "channels_last",
        "mixed_precision=bf16",
        "cpu_threads=1",
        "compile=default",
        "flush_denormals",
        "+ workers=2",
        "+ channels_last",
        "all that was kept",
        CEILING,
    ]
    kept = rows[3]
    assert kept.cells == ("workers=2", "32", "600 MB", "121", "264", "", "1.51x 1.46–1.56", "redrawn", "kept")
    assert rows[-1].cells == (CEILING, "", "", "102", "314", "", "1.79x", "", "")
    assert rows[8].numerics == "unsound"


def test_the_whole_recipe_has_a_row_even_where_it_was_not_raced_again() -> None:
    verdicts = [verdict for verdict in made_tuning().verdicts if verdict.kind != "total"]
    [*_, total, ceiling] = table_rows(made_tuning(verdicts=verdicts))
    assert (total.name, total.step, total.relative) == ("all that was kept", "114", "1.61x 1.56–1.66")
    assert ceiling.name == CEILING


def test_the_terminal(session: Session, paint: Paint) -> None:
    text = paint(render_session, session)
    for piece in (
        "slipstream tune  train.py --epochs 90",
        "7 tried in 4.8 min",
        "90 epochs: 14 h → 9 h. A step is 1.61x as fast (95%: 1.56x to 1.66x) with workers=2 +\n channels_last.",
        "technique             batch  memory  step ms  samples/s  relative to base  numerics   verdict",
        "mixed_precision=bf16: 12 times slower: this CPU has no bf16 units",
        "costs    channels_last: 4 s once, paid back after 310 steps",
        "tf32, cudnn_benchmark: no CUDA device",
        "discarded after the tune",
    ):
        assert piece in text
    assert "workers=1: " not in text.partition("not kept")[2], "a setting that lost to another of a kept technique"
    assert "The step waits" not in text, "that is the report of the check"


@pytest.mark.parametrize("name", ["slow", "device", "hostile", "empty"])
@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_it_keeps_to_the_width(sessions: Sessions, paint: Paint, name: str, width: int, encoding: str) -> None:
    long = made_verdict("compile", "rejected", 0.9, "max-autotune-no-cudagraphs", reason="[b]slow \x1b[31m" + "x" * 300)
    session = tuned(sessions[name], verdicts=[*made_tuning().verdicts, long])
    for render in (render_session, render_brief):
        text = paint(render, session, width=width, encoding=encoding)
        assert "\x1b" not in text
        for line in text.splitlines():
            assert cell_len(line) <= width, line


def test_narrow_terminals_lose_batch_size_and_memory_first(session: Session, paint: Paint) -> None:
    [header] = [line for line in paint(render_brief, session, width=80).splitlines() if "verdict" in line]
    assert header.split() == ["technique", "step", "ms", "relative", "to", "base", "numerics", "verdict"]


def test_no_name_is_cut_at_a_hundred_columns(sessions: Sessions, paint: Paint) -> None:
    """Long names stay whole, because columns are dropped first."""
    long = made_verdict("low_memory_optimizer", "rejected", 0.9, "eight_bit_and_more")
    text = paint(render_session, tuned(sessions["slow"], verdicts=[long]), width=100)
    assert "low_memory_optimizer=eight_bit_and_more" in text and "…" not in text


def test_what_was_not_raced_is_one_line(sessions: Sessions, paint: Paint) -> None:
    names = ("workers", "prefetch", "pinned_memory")
    late = [made_verdict(name, "unsure", reason="not raced: too little time for it") for name in names]
    raced = made_verdict("channels_last", "rejected", 0.9, reason="slower")
    text = paint(render_session, tuned(sessions["slow"], verdicts=[raced, *late]), width=100)
    assert text.count("workers, prefetch, pinned_memory: not raced") == 1 and "too little time" not in text
    assert [line.split()[0] for line in text.splitlines() if " rejected" in line] == ["channels_last"]


def test_every_form_begins_with_the_whole_training_and_has_one_line_for_what_was_not_raced(session: Session) -> None:
    assert session.tuning is not None
    late = [made_verdict(name, "unsure", reason="not raced: too little time for it") for name in ("prefetch", "cache")]
    session = tuned(session, verdicts=[*session.tuning.verdicts, *late])
    for text in (to_markdown(session), tuning_to_html(session), to_page(session)):
        visible = re.sub(r"<[^>]*>", " ", re.sub(r"(?s)<(style|script|title)\b.*?</\1>", "", text))
        first, table = visible.index("90 epochs: 14 h → 9 h. A step is 1.61x as fast"), visible.index("as it is")
        assert first < table
        assert len(re.findall(r"prefetch, cache\W+not raced\. A longer --budget races them\.", visible)) == 1


def test_the_headline_says_that_an_outer_loop_repeats_the_training(session: Session) -> None:
    folds = msgspec.structs.replace(session, length=Length(num_epochs=14, around=Site("/home/ada/train.py", 90)))
    assert gain(folds).startswith("14 epochs for each iteration of train.py:90: 14 h → 9 h. A step is")


def _selected(session: Session, **facts: Any) -> Session:
    """Returns a session with the verdicts of a selection and a proof."""
    whole = Recipe((Choice("workers", 2), Choice("channels_last")))
    alone = made_verdict("workers", "kept", 1.5, 2, own_ratio=1.5, cause="gains")
    on_top = made_verdict("channels_last", "kept", 1.8, own_ratio=1.2, cause="gains", recipe=whole)
    left_out = made_verdict("workers", "kept", 1.4, 2, kind="left_out", own_ratio=1.4, cause="gains")
    total = made_verdict("recipe", "kept", 1.61, kind="total", cause="proved", recipe=whole)
    verdicts = [alone, on_top, left_out, total]
    return tuned(session, **{"verdicts": verdicts, "noise": Speed(1.02, 1 / FARTHEST, FARTHEST), **facts})


def test_estimates_of_the_selection_and_the_proof_are_not_in_one_column(session: Session, paint: Paint) -> None:
    selected = _selected(session)
    assert selected.tuning is not None
    cells = {row.name: (row.step, row.own, row.relative) for row in table_rows(selected.tuning)}
    assert cells == {
        "as it is": ("183", "", "1.00x"),
        "nothing (A/A)": ("", "~1.02x", ""),
        "workers=2": ("", "~1.50x", ""),
        "+ channels_last": ("", "~1.20x", ""),
        "all that was kept": ("114", "", "1.61x 1.56–1.66"),
        CEILING: ("102", "", "1.79x"),
    }
    text = paint(render_session, selected)
    assert "own gain" in text and "the recipe without it is slower by ~1.40x" in text
    assert "1.61x (1.56 to 1.66) in 40 pairs" in " ".join(text.split()) or "24 pairs" in text
    document = json.loads(export(selected))
    alone, on_top = document["verdicts"]
    assert (alone["own_ratio"], alone["ratio"], alone["cause"]) == (1.5, 1.5, "gains")
    assert (on_top["own_ratio"], on_top["ratio"]) == (1.2, 1.8)
    assert document["combinations"][-1]["reason"].startswith("1.61x")
    assert [entry.speed.ratio for entry in entries_of(selected.tuning)] == [1.02, 1.5, 1.2, 1.61]


@pytest.mark.parametrize("is_bounded", [True, False])
def test_a_candidate_that_was_not_proved_is_the_headline(session: Session, paint: Paint, is_bounded: bool) -> None:
    recipe = Recipe((Choice("workers", 2),))
    speed = Speed(1.52, 1.4, 1.7) if is_bounded else Speed(1.52, 1 / FARTHEST, FARTHEST)
    facts = {"recipe": Recipe(), "total": None, "seconds_after": None}
    unsure = _selected(session, candidate=recipe, candidate_speed=speed, **facts)
    fast = "1.52x as fast (95%: 1.40x to 1.70x)" if is_bounded else "about 1.52x as fast"
    sentence = f"Best so far, not proved: a step is {fast} with workers=2. "
    sentence += "Continue: slipstream tune --resume train.py --epochs 90."
    assert gain(unsure) == sentence
    for text in (paint(render_session, unsure), to_markdown(unsure), to_page(unsure), tuning_to_html(unsure)):
        assert "Best so far, not proved" in text
    assert json.loads(export(unsure))["tuning"]["candidate"] == {"workers": 2}


def test_load_that_was_seen_is_a_sentence(session: Session, paint: Paint) -> None:
    loaded = _selected(session, num_rounds=60, num_discarded=14, foreign_cores=1.2, waited_s=40.0)
    sentence = "Other programs used 1.2 cores in 14 of 60 rounds, which do not count. The tuning waited 40 s for them."
    for text in (paint(render_brief, loaded), to_markdown(loaded)):
        assert sentence in " ".join(text.split())
    assert "Other programs" not in paint(render_brief, _selected(session, num_rounds=60))


def test_what_patch_can_write_is_one_line(session: Session, paint: Paint) -> None:
    recipe, speed = Recipe((Choice("workers", 2),)), Speed(1.6, 1 / FARTHEST, FARTHEST)
    writable = _selected(session, writable=recipe, writable_speed=speed)
    sentence = "workers=2: about 1.60x; slipstream patch can write it into the source"
    assert sentence in " ".join(paint(render_session, writable).split())
    for text in (to_markdown(writable), to_page(writable), tuning_to_html(writable)):
        assert "slipstream patch can write it" in text
    assert "can be written" not in paint(render_session, _selected(session))


def test_quiet_is_the_sentence_and_the_table(session: Session, paint: Paint) -> None:
    lines = paint(render_brief, session).splitlines()
    assert lines[0].startswith(" 90 epochs: 14 h → 9 h.")
    assert lines[2].split()[0] == "technique" and lines[-1].startswith(f" {CEILING}")
    assert len(lines) == 16


def test_nothing_kept_is_reported(sessions: Sessions, paint: Paint) -> None:
    text = paint(render_session, nothing_kept(sessions["slow"]))
    assert "No technique was proved to make the script faster. The script stays as it is." in text
    assert "→" not in text.splitlines()[1]


def test_a_machine_that_was_always_busy_is_named_as_the_reason(sessions: Sessions) -> None:
    busy = tuned(sessions["slow"], verdicts=[], recipe=Recipe(), total=None, num_rounds=3, num_discarded=3)
    assert gain(busy).startswith("Other programs used the cores in every round")
    some = tuned(sessions["slow"], verdicts=[], recipe=Recipe(), total=None, num_rounds=4, num_discarded=3)
    assert not gain(some).startswith("Other programs")


def test_nothing_tried_is_not_called_tried(sessions: Sessions, paint: Paint) -> None:
    late = made_verdict("workers", "unsure", setting=2, reason="not tried: the time was used up")
    text = paint(render_session, tuned(sessions["slow"], verdicts=[late], recipe=Recipe(), total=None))
    assert "0 tried" in text and "No technique could be tried" in text and "workers: not raced" in text


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (Length(1, None, "--epochs"), "1 epoch: 14 h → 9 h."),
        (Length(None, 20_000, "max_iters"), "20,000 steps: 14 h → 9 h."),
        (None, "The whole training: 14 h → 9 h."),
    ],
)
def test_the_length_of_the_training(session: Session, paint: Paint, length: Length | None, words: str) -> None:
    assert words in paint(render_brief, msgspec.structs.replace(session, length=length))


def test_without_a_length_there_is_no_promise_of_hours(sessions: Sessions, paint: Paint) -> None:
    session = tuned(sessions["slow"], seconds_before=None, seconds_after=None)
    assert paint(render_brief, session).startswith(" A step is 1.61x as fast (95%: 1.56x to 1.66x) with workers=2")


def test_a_noisy_machine_and_an_interruption_are_reported_at_the_top(sessions: Sessions, paint: Paint) -> None:
    noise = "Two equal trials differed by 12%: too noisy to tell small gains."
    text = paint(render_brief, tuned(sessions["slow"], noise_note=noise, is_complete=False))
    assert noise in text and "slipstream tune --resume train.py --epochs 90" in " ".join(text.split())


def test_markdown_is_one_table(session: Session) -> None:
    lines = to_markdown(session).splitlines()
    assert lines[0] == (
        "**90 epochs: 14 h → 9 h. A step is 1.61x as fast (95%: 1.56x to 1.66x) with workers=2 + channels\\_last.**"
    )
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 15
    assert {row.count("|") for row in rows} == {9}
    assert "- `cpu_threads=1`: not decided when the budget was used up" in lines
    assert "torch 2.13.0 on cpu" in lines[-1] and "95% interval" in lines[-1]


def test_markdown_of_a_hostile_script_is_still_one_table(sessions: Sessions) -> None:
    nasty = made_verdict("compile", "failed", reason="| a | b | <img src=x> `x` **\n\n# heading")
    text = to_markdown(tuned(sessions["hostile"], verdicts=[nasty]))
    assert "<img" not in text and "\n# heading" not in text
    assert not re.search(r"(?<!\\)\| a \|", text)


def test_only_a_tuning_has_a_table(sessions: Sessions) -> None:
    with pytest.raises(ValueError, match="this session is a check"):
        to_markdown(sessions["slow"])


def test_json_has_the_promised_names(session: Session) -> None:
    document = json.loads(export(session))
    assert document["command"] == "tune"
    assert document["verdict"].startswith("90 epochs: 14 h → 9 h.")
    assert document["total"] == {"ratio": 1.61, "low": 1.56, "high": 1.66}
    by_name = {(v["technique"], v["setting"]): v for v in document["verdicts"]}
    assert len(by_name) == len(document["verdicts"]) == 10, "one for each technique and setting"
    kept = by_name["workers", 2]
    assert {name: kept[name] for name in ("decision", "ratio", "numerics", "reason")} == {
        "decision": "kept",
        "ratio": 1.51,
        "numerics": "redrawn",
        "reason": "faster beyond doubt",
    }
    assert kept["low"] < kept["ratio"] < kept["high"]
    absent = by_name["tf32", True]
    assert [absent[name] for name in ("decision", "ratio", "low", "high", "numerics")] == [
        "not_applicable",
        *[None] * 4,
    ]
    assert by_name["flush_denormals", True]["is_sound"] is False
    assert [v["kind"] for v in document["combinations"]] == ["cumulative", "cumulative", "left_out", "total"]
    assert document["tuning"]["recipe"] == {"workers": 2, "channels_last": True}
    assert document["findings"], "as for check"


def test_json_without_a_tuning_or_a_winner(sessions: Sessions) -> None:
    check = json.loads(export(sessions["slow"]))
    assert (check["verdicts"], check["total"], check["tuning"]) == ([], None, None)
    nothing = json.loads(export(nothing_kept(sessions["slow"])))
    assert nothing["total"] == {"ratio": None, "low": None, "high": None}


class Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag: str) -> None:
        assert self.tags.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] in (["td"], ["th"]):
            self.rows[-1].append(data)


@pytest.mark.parametrize("name", ["slow", "hostile", "empty"])
def test_a_notebook_shows_the_same_table(sessions: Sessions, name: str) -> None:
    cells = Cells()
    html = tuning_to_html(tuned(sessions[name]))
    cells.feed(html)
    assert cells.tags == []
    assert len(cells.rows) == 14
    assert cells.rows[4] == ["workers=2", "32", "600 MB", "121", "264", "1.51x 1.46–1.56", "redrawn", "kept"]
    assert "<b>&amp;</b>" not in html


def test_ratios_as_people_read_them() -> None:
    assert [as_ratio(ratio) for ratio in (0.004, 0.08, 1.0, 1.514, 12.34, 250.0)] == [
        *("0.004x", "0.08x", "1.00x", "1.51x", "12.3x", "250x"),
    ]
    assert between_ratios(0.97, 1.03) == "0.97–1.03"
    assert between_ratios(0.01, 100.0) == "?", "nothing is known after so few rounds"
    assert between_ratios(1.2, 100.0) == "1.20–?"


def on_a_lead() -> Session:
    """Returns an older session: workers=2 was kept before it was decided, so its row has a ratio without bounds."""
    lead = Speed(1.58, 1 / FARTHEST, FARTHEST, 3)
    verdicts = [
        msgspec.structs.replace(verdict, speed=lead, reason="what it adds was not decided; the whole recipe: 1.6x")
        if verdict.kind == "single" and verdict.choice == Choice("workers", 2)
        else verdict
        for verdict in made_tuning().verdicts
    ]
    without = Recipe((Choice("channels_last"),))
    worth = made_verdict("workers", "kept", 1.21, 2, kind="left_out", recipe=without, speed=Speed(1.21, 1.1, 1.34, 20))
    return tuned(diagnose(made_session()), verdicts=[*verdicts, worth])


def test_what_was_kept_on_a_lead_is_proved_beside_its_row_in_every_form(paint: Paint) -> None:
    session = on_a_lead()
    assert session.tuning is not None
    [row] = [row for row in table_rows(session.tuning) if row.name == "workers=2"]
    assert row.relative == "~1.58x", "there is no interval to show here"
    proof = "worth 1.21x (1.10 to 1.34) inside the recipe"
    assert f"proof    workers=2: {proof}" in paint(render_session, session)
    assert f"- `workers=2`: {proof}" in to_markdown(session)
    assert f'<code>workers=2</code> <span class="dim">{proof}</span>' in tuning_to_html(session)
    [terms, *_] = whys(session.tuning)
    assert terms.entries[0] == ("workers=2", proof)
    entries = {entry.name: entry.proof for entry in entries_of(session.tuning)}
    assert entries["workers=2"] == proof and entries["workers=1"] == ""
    assert "worth 1.07x (1.04 to 1.10) inside the recipe" in terms.entries[1][1]


def test_what_was_never_left_out_has_the_proof_of_the_whole() -> None:
    session = on_a_lead()
    assert session.tuning is not None
    verdicts = [verdict for verdict in session.tuning.verdicts if verdict.kind != "left_out"]
    found = dict(worths(msgspec.structs.replace(session.tuning, verdicts=verdicts)))
    assert found == {"workers=2": "what it adds was not decided; the whole recipe: 1.6x"}


def test_every_row_that_ran_has_its_memory() -> None:
    tuning = made_tuning()
    control = TrialRecord(TrialSpec(1, "twin", Recipe((Choice("nothing"),))), peak_bytes=410_000_000)
    whole = TrialRecord(TrialSpec(2, "candidate", tuning.recipe), peak_bytes=1, device_peak_bytes=700_000_000)
    verdicts = [verdict for verdict in tuning.verdicts if verdict.kind != "total"]
    rows = table_rows(msgspec.structs.replace(tuning, verdicts=verdicts, trials=[control, whole]))
    memory = {row.name: row.memory for row in rows}
    assert memory["nothing (A/A)"] == "410 MB" and memory["all that was kept"] == "700 MB"
    assert [name for name, text in memory.items() if not text] == ["compile=default", CEILING], "those never ran"


def test_columns_are_sorted_by_the_numbers_behind_the_cells() -> None:
    tuning = made_tuning()
    base, kept = (row for row in table_rows(tuning) if row.name in ("as it is", "workers=2"))
    [verdict] = [one for one in tuning.verdicts if str(one.choice) == "workers=2" and one.kind == "single"]
    assert verdict.speed is not None
    assert kept.orders == (
        None,
        verdict.batch_size,
        verdict.peak_bytes,
        verdict.step_ms,
        verdict.samples_per_s,
        None,
        verdict.speed.ratio,
        None,
        None,
    )
    assert base.orders[3] == tuning.base_step_ms and base.orders[6] == 1.0 and base.relative == "1.00x"


@pytest.mark.parametrize(
    ("technique", "low", "words"),
    [
        ("decode_cache", 2.4, "beaten: less work"),
        ("workers", 2.4, "beaten: more cores"),
        ("prefetch", 2.4, "beaten: measured earlier"),
        ("prefetch", 1.9, "beaten: noise"),
    ],
)
def test_a_gain_above_the_ceiling_is_explained_in_its_row(
    session: Session, paint: Paint, technique: str, low: float, words: str
) -> None:
    verdict = made_verdict(technique, "kept", 2.5, speed=Speed(2.5, low, 2.6, 20))
    facts = {"base_step_ms": 100.0, "ceiling_ms": 50.0, "recipe": verdict.recipe, "total": verdict.speed}
    over = tuned(session, verdicts=[verdict], **facts)
    for text in (paint(render_brief, over), to_markdown(over), tuning_to_html(over), to_page(over)):
        assert words in text
    assert over.tuning is not None
    [*_, ceiling] = rungs_of(over.tuning)
    assert (ceiling.name, ceiling.ms, ceiling.remark) == (CEILING, 50.0, words)
    under = tuned(session, verdicts=[verdict], **facts | {"ceiling_ms": 30.0})
    assert "exceeded" not in paint(render_brief, under) + to_page(under)


def test_a_tuned_session_has_one_base_step(session: Session, paint: Paint, tmp_path: Path) -> None:
    """The step of the check differs from that of the races, and appears only where the page says that it is the
    check's."""
    session = tuned(diagnose(made_session(forward_ms=800.0)))
    check, base = "822 ms", "183 ms"
    for text in (paint(render_session, session), to_markdown(session), tuning_to_html(session)):
        assert check not in text
    page = " ".join(to_page(session).split())
    before, _, after = page.partition('<section id="step"')
    assert base in before and check not in before
    assert check in after and f"ran before the races. In the races a step of the unchanged script took {base}." in after
    told = json.loads(export(session))
    assert told["tuning"]["base_step_ms"] == BASE_MS
    assert values(session)["check/step_ms"] == pytest.approx(822) and "summary/step_ms" not in values(session)
    save_session(session, tmp_path)
    [entry] = entries(tmp_path / ".slipstream")
    assert (entry.step_ms, entry.samples_per_s) == (BASE_MS, BASE_RATE)


def test_all_figures_of_the_recipe_agree(session: Session) -> None:
    """In a session of an older version, the race of the whole recipe has other figures than the total."""
    late = [msgspec.structs.replace(one, step_ms=999.0) for one in made_tuning().verdicts]
    tuning = made_tuning(verdicts=late, total=Speed(1.5, 1.4, 1.6, 40))
    row = next(one for one in table_rows(tuning) if one.name == "all that was kept")
    rung = next(one for one in rungs_of(tuning) if one.kind == "total")
    entry = next(one for one in entries_of(tuning) if one.name == "all that was kept")
    assert row.step_ms == rung.ms == BASE_MS / 1.5
    assert row.speed == rung.speed == entry.speed == tuning.total


def test_what_the_races_measured_for_a_finding(session: Session) -> None:
    [finding, *_] = diagnose(made_session(input_ms=40.0, forward_ms=3.0, backward_ms=6.0)).findings
    assert finding.cause == "no_workers" and "workers" in finding.techniques
    assert measured(None, finding) == "" and measured(made_tuning(verdicts=[]), finding) == ""
    less = msgspec.structs.replace(finding, predicted_gain=2.0)
    assert measured(session.tuning, less) == "With workers=2 tune measured 1.51x (1.46 to 1.56)."
    more = msgspec.structs.replace(finding, predicted_gain=1.3)
    said = "With workers=2 tune measured 1.51x (1.46 to 1.56). The check, which ran at another time, predicted less"
    assert measured(session.tuning, more).startswith(said)
    page = msgspec.structs.replace(session, findings=[more])
    assert said in to_page(page) and json.loads(export(page))["findings"][0]["measured"].startswith(said)


def test_a_gain_too_small_to_be_kept_is_called_one() -> None:
    """The interval lies above 1.00x, but not wholly above what a recipe has to gain."""
    for low, words in (
        (1.008, "faster, but perhaps by too little to be kept: 1.03x"),
        (0.99, "not proved to be faster: "),
    ):
        speed = Speed(1.027, low, 1.045, 12)
        assert reason_of(
            made_verdict("recipe", "unsure", 1.027, kind="total", cause="not_proved", speed=speed)
        ).startswith(words)
