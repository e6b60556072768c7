"""The parts of a page, each from chosen facts: what they show, and when they are absent."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from slipstream.records import Choice, Event, Numerics, Recipe, Session, Site, TrialRecord, TrialSpec
from slipstream.report.html.environment import commands
from slipstream.report.html.findings import excerpt, read_source
from slipstream.report.html.loss_chart import loss_charts
from slipstream.report.html.race_timeline import processes_of
from slipstream.report.html.step_chart import MOST_COLUMNS, columns_of
from slipstream.report.html.svg import Scale, clean, element, percent, roof, thinned, ticks, ticks_of_time
from slipstream.report.html.tables import tune_table
from slipstream.report.html.timeline import processes_of as timeline_processes
from slipstream.report.html.timeline import typical
from slipstream.report.html.verdict_chart import entries_of
from slipstream.report.html.waterfall import rungs_of
from slipstream.testing.made_fingerprints import made_fingerprint
from slipstream.testing.made_sessions import made_session
from slipstream.testing.made_verdicts import BASE_MS, made_tuning, made_verdict


def test_an_element_escapes_what_it_is_given() -> None:
    made = element("text", "<b>", data_tip='" onload="x', class_="a", x=1.005, y=2.0, hidden=None)
    assert made == '<text data-tip="&#34; onload=&#34;x" class="a" x="1" y="2">&lt;b&gt;</text>'
    assert percent(0.12345) == "12.35%" or percent(0.12345) == "12.34%"
    assert clean("a\x1b\u202e\ud800b\n\tc漢") == "a???b\n\tc漢"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 100, [0, 50, 100]), (0, 183, [0, 50, 100, 150]), (0.2, 1.0, [0.2, 0.4, 0.6, 0.8, 1.0]), (3, 3, [3])],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, 4 if high != 100 else 2) == pytest.approx(expected)


def test_ticks_of_minutes_are_whole() -> None:
    assert ticks_of_time(230.0) == [0.0, 60.0, 120.0, 180.0]
    assert ticks_of_time(40.0) == [0.0, 10.0, 20.0, 30.0, 40.0]


def test_one_wild_value_does_not_flatten_the_rest() -> None:
    assert roof([100.0] * 99 + [9000.0]) == pytest.approx(270.0)
    assert roof([100.0, 150.0]) == pytest.approx(162.0)
    assert roof([]) == 1.0
    assert Scale(0.0, 10.0).share(20.0) == 1.0 and Scale(5.0, 5.0).share(5.0) == 0.0


def test_points_are_averaged_not_dropped() -> None:
    points = [(float(at), float(at % 2)) for at in range(1000)]
    few = thinned(points, 100)
    assert len(few) == 100 and {y for _, y in few} == {0.5}
    assert thinned([], 10) == []


def test_the_waterfall_grows_with_the_recipe() -> None:
    rungs = rungs_of(made_tuning())
    assert [rung.name for rung in rungs] == [
        *("as it is", "+ workers=2", "+ channels_last", "all that was kept", "ceiling: no waiting"),
    ]
    assert [rung.ms for rung in rungs] == pytest.approx([BASE_MS, BASE_MS / 1.51, BASE_MS / 1.62, BASE_MS / 1.61, 102])
    assert rungs[2].before_ms == rungs[1].ms
    low_ms, high_ms = rungs[1].interval_ms or (0.0, 0.0)
    assert (low_ms, high_ms) == pytest.approx((BASE_MS / 1.51 / 1.03, BASE_MS / 1.51 / 0.97))


def test_what_was_never_raced_by_itself_shares_a_rung() -> None:
    """If a technique is removed from the recipe later, the first techniques of the recipe were never raced together."""
    tuning = made_tuning()
    first = Choice("workers", 2)
    verdicts = [each for each in tuning.verdicts if each.recipe.choices != (first,)]
    rungs = rungs_of(msgspec.structs.replace(tuning, verdicts=verdicts))
    assert [rung.name for rung in rungs][1] == "+ workers=2 + channels_last"


def test_the_chart_shows_what_was_timed() -> None:
    entries = entries_of(made_tuning())
    assert [entry.name for entry in entries][:2] == ["nothing (A/A)", "workers=1"]
    assert "compile=default" not in [entry.name for entry in entries], "it failed before its first block"
    assert entries[-1].name == "all that was kept"


def test_the_tune_table_sorts_by_what_cells_mean() -> None:
    table = tune_table(made_tuning())
    memory = table.headings.index("memory")
    assert table.rows[0][memory].order == 412e6
    speeds = [row[table.headings.index("relative to base")].order for row in table.rows]
    assert speeds[:3] == [1.0, 1.0, 1.42]
    assert table.rows[0][0].order is None


def test_processes_of_the_races(full: Session) -> None:
    assert full.tuning is not None
    processes = processes_of(full.tuning.trials)
    assert [process.name for process in processes] == ["as it is", "nothing (A/A)", "workers=2 + channels_last"]
    assert [len(process.timings) for process in processes] == [12, 12, 12], "a seed's trial was not timed"
    assert processes[2].step_ms < 0.8 * processes[0].step_ms


def test_losses_need_a_recipe_and_two_curves(full: Session) -> None:
    tuning = full.tuning
    assert tuning is not None
    [chart] = loss_charts(tuning)
    assert chart.table is not None and "120 steps of both trials" in chart.caption
    assert loss_charts(msgspec.structs.replace(tuning, recipe=Recipe())) == []
    assert loss_charts(msgspec.structs.replace(tuning, trials=tuning.trials[:1])) == []


def test_a_control_that_ran_fewer_steps_than_the_trials_is_drawn_as_far_as_it_ran(full: Session) -> None:
    tuning = full.tuning
    assert tuning is not None
    numerics = Numerics("reordered", True)
    verdicts = [made_verdict("recipe", "kept", 1.6, kind="total", recipe=tuning.recipe, numerics=numerics)]
    short = TrialRecord(TrialSpec(9, "rounding"), fingerprint=made_fingerprint(12, rounding=1e-6))
    drawn = msgspec.structs.replace(tuning, verdicts=verdicts, trials=[*tuning.trials, short])
    [chart] = loss_charts(drawn)
    assert "120 steps of both trials" in chart.caption and "dots-noise" in str(chart.picture)


def test_steps_are_grouped_where_there_are_many() -> None:
    session = made_session(num_steps=2000)
    columns = columns_of(session)
    assert MOST_COLUMNS / 2 < len(columns) <= MOST_COLUMNS + len(session.blocks)
    assert sum(column.last - column.first + 1 for column in columns) == len(session.steps)
    assert columns[20].ms == pytest.approx(32.0)
    assert {column.kind for column in columns} == {"warmup", "watch", "kept"}


def test_the_timeline_shows_phases_as_they_went(full: Session) -> None:
    assert full.summary is not None
    step = typical(full, full.summary)
    assert step is not None and step.step_ms == pytest.approx(full.summary.step_ms, rel=0.05)
    host, *others = timeline_processes(full, step)
    assert [piece.label for piece in host.pieces] == ["input", "forward", "backward", "optimizer", "other"]
    assert sum(piece.end - piece.start for piece in host.pieces) == pytest.approx(step.step_ms, rel=1e-6)
    assert {process.name for process in others} <= {"worker 0", "worker 1"} and others


def test_the_device_has_its_own_clock(full: Session) -> None:
    assert full.summary is not None
    step = typical(full, full.summary)
    assert step is not None
    forward = Event("forward", 0, step.start_ns, step.end_ns, device_start_ms=700.0, device_end_ms=720.0)
    backward = Event("backward", 0, step.start_ns, step.end_ns, device_start_ms=725.0, device_end_ms=750.0)
    processes = timeline_processes(msgspec.structs.replace(full, events=[forward, backward]), step)
    device = next(process for process in processes if process.name == "device")
    assert [(piece.start, piece.end, piece.label) for piece in device.pieces] == [
        (0.0, 20.0, "forward"),
        (20.0, 25.0, "other"),
        (25.0, 50.0, "backward"),
    ]


def test_source_is_shown_if_it_is_unchanged(source_site: Site) -> None:
    text = "import torch\n\nloader = DataLoader(photos)\n\nmain()\n"
    lines = excerpt(source_site, lambda file: text)
    assert [line.number for line in lines] == [1, 2, 3, 4, 5]
    assert [line.text for line in lines if line.is_meant] == ["loader = DataLoader(photos)"]
    assert excerpt(source_site, lambda file: text.replace("photos", "images")) == []
    assert excerpt(source_site, lambda file: None) == []
    assert excerpt(source_site, lambda file: "one line\n") == []


def test_only_python_is_read(tmp_path: Path) -> None:
    script, secret = tmp_path / "train.py", tmp_path / "secret.txt"
    script.write_bytes("# -*- coding: latin-1 -*-\nname = 'Zoé'\n".encode("latin-1"))
    secret.write_text("password")
    assert "Zoé" in (read_source(str(script)) or "")
    assert read_source(str(secret)) is None and read_source(str(tmp_path / "gone.py")) is None
    broken = tmp_path / "broken.py"
    broken.write_bytes(b"\xff\xfe\x00")
    assert read_source(str(broken)) is None


def test_commands_can_be_pasted(full: Session) -> None:
    session = msgspec.structs.replace(
        full, script=["my train.py", "--name", "a;b"], cwd="/home/a b", options=["--html"]
    )
    lines = [line for _, line in commands(session)]
    assert lines == [
        "cd '/home/a b'",
        "slipstream tune --html 'my train.py' --name 'a;b'",
        "slipstream tune --only workers,channels_last 'my train.py' --name 'a;b'",
        "slipstream run 'my train.py' --name 'a;b'",
    ]
    assert commands(msgspec.structs.replace(session, command="watch")) == []


def test_a_rung_that_gets_slower_is_no_gain() -> None:
    both = Recipe((Choice("workers", 2), Choice("channels_last")))
    verdicts = [
        made_verdict("workers", "kept", 1.5, 2),
        made_verdict("channels_last", "kept", 1.4, kind="cumulative", recipe=both),
    ]
    rungs = rungs_of(made_tuning(verdicts=verdicts))
    assert rungs[2].ms > (rungs[2].before_ms or 0.0)
