"""The progress of the races: one redrawn line on a terminal, plain lines elsewhere, and no long silence."""

from __future__ import annotations

import io

import pytest

from slipstream.records import Choice, Recipe
from slipstream.report.terminal.live_tune import LiveTune, LiveTuneState, tune_line, verdict_line
from slipstream.testing.made_verdicts import made_verdict

RACING = LiveTuneState(
    ["as it is", "nothing", "workers=2"],
    "",
    4,
    {"kept": 1, "rejected": 2},
    192.0,
    320.0,
    "best so far ~1.38x workers=2",
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Screen(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


class Log(Screen):
    def isatty(self) -> bool:
        return False


def test_what_races_what_is_decided_and_the_time() -> None:
    assert tune_line(RACING, 50.0, 150) == (
        "⠋ round 4: as it is, nothing, workers=2 · ████░░░░░░ 3.2 min left · best so far ~1.38x workers=2"
        " · 1 kept, 2 rejected"
    )


def test_a_trial_that_starts_is_named() -> None:
    state = LiveTuneState(["as it is"], "compile=default", 0)
    assert "starting compile=default" in tune_line(state, 1.0, 100)
    assert "getting ready" in tune_line(LiveTuneState(), 1.0, 100)


@pytest.mark.parametrize("width", [0, 1, 10, 30, 40, 60, 80, 120])
@pytest.mark.parametrize("unicode", [True, False])
def test_it_never_reaches_the_edge(width: int, unicode: bool) -> None:
    line = tune_line(
        LiveTuneState([f"technique_{i}=long" for i in range(20)], "", 7, {"kept": 3}, 9.0, 60.0, "x"), 7200.0, width
    )
    assert len(line) < max(width, 1)
    plain = tune_line(RACING, 50.0, width, unicode=unicode)
    assert unicode or plain.isascii()


def test_time_left_stays_when_the_names_are_long() -> None:
    line = tune_line(LiveTuneState([f"technique_{i}=long" for i in range(20)], "", 7, {}, 65.0, 130.0), 5.0, 80)
    assert "round 7: technique_0=long and 19 more · █████░░░░░ 1.1 min left" in line


def test_every_verdict_is_a_line() -> None:
    line = verdict_line(made_verdict("workers", "kept", 1.51, 2, reason="faster beyond doubt"))
    assert line == " kept      workers=2                  1.51x 1.46–1.56 reordered   faster beyond doubt"
    hostile = verdict_line(made_verdict("compile", "failed", reason="two\nlines, \x1b[31mred"))
    assert hostile.isprintable() and hostile.endswith("two lines, ?[31mred")
    assert verdict_line(made_verdict("workers", "kept", 1.51, 2), unicode=False).isascii()


def test_a_name_that_does_not_fit_is_cut_only_if_it_is_the_only_one() -> None:
    names = ["as it is", "nothing (A/A)", "low_memory_optimizer=8bit"]
    line = tune_line(LiveTuneState(names, "", 2, {}, 65.0, 130.0), 5.0, 80)
    assert "round 2: as it is, nothing (A/A) and 1 more · █" in line
    short = tune_line(LiveTuneState(names[2:], "", 2, {}, 65.0, 130.0), 5.0, 56)
    assert "round 2: low_memory_optimi… · █" in short


def test_a_long_note_is_wrapped_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    screen = Screen()
    live = LiveTune(screen, thread=False)
    live.note("check     The step waits for data 63% of the time: 63 ms a step, 23 ms if data were free.")
    assert screen.getvalue().removeprefix("\r\x1b[2K").splitlines() == [
        " check     The step waits for data 63% of the time: 63 ms a",
        "           step, 23 ms if data were free.",
    ]


def test_names_of_combinations() -> None:
    names = [
        verdict_line(made_verdict("workers", "kept", 1.5, 2, kind=kind))[11:37].strip()
        for kind in ("cumulative", "left_out", "total", "noise")
    ]
    assert names == ["+ workers=2", "workers in recipe", "all together", "nothing (A/A)"]


def test_other_programs_that_are_waited_for_are_named() -> None:
    state = LiveTuneState(["as it is", "workers=2"], "", 4, foreign_cores=1.24)
    assert "another program uses 1.2 cores: waiting" in tune_line(state, 5.0, 100)
    log = Log()
    live = LiveTune(log, thread=False)
    for cores in (1.2, 1.3, 0.0, 0.8, 0.0):
        live.waiting(cores)
    assert log.getvalue().splitlines() == [
        " another program uses 1.2 cores: waiting",
        " another program uses 0.8 cores: waiting",
    ], "one line for each wait"


def test_the_best_recipe_so_far_stays_visible() -> None:
    screen = Screen()
    live = LiveTune(screen, thread=False)
    live.best(Recipe((Choice("workers", 2),)), 1.38)
    live.racing(["as it is"])
    live.draw()
    assert "best so far ~1.38x workers=2" in screen.getvalue()


def test_a_verdict_of_the_selection_shows_its_own_gain() -> None:
    verdict = made_verdict("workers", "kept", 2.1, 2, own_ratio=1.38, cause="gains")
    assert verdict_line(verdict) == " kept      workers=2                  ~1.38x reordered            about 1.38x"


def test_a_log_gets_plain_lines_and_dots() -> None:
    log, clock = Log(), Clock()
    with LiveTune(log, clock=clock, thread=False) as live:
        live.racing(["as it is", "workers=2"])
        live.racing(["as it is", "workers=2"])
        live.entering("workers=2")
        live.entering("workers=2")
        for _ in range(20):
            clock.now_s += 0.5
            live.draw()
        live.decided(made_verdict("workers", "kept", 1.5, 2))
        live.decided(made_verdict("tf32", "not_applicable", reason="no CUDA device"))
        live.decided(made_verdict("prefetch", "unsure", reason="not raced: too little time for it"))
        live.note("Memory holds one rider at a time.")
    assert log.getvalue().splitlines() == [
        ".....",
        " kept      workers=2                  1.50x 1.46–1.54 reordered",
        " Memory holds one rider at a time.",
    ]
    assert live.summary == "1 kept"


def test_a_terminal_is_redrawn_and_left_clean() -> None:
    screen, clock = Screen(), Clock()
    live = LiveTune(screen, clock=clock, thread=False)
    live.racing(["as it is", "workers=2"])
    live.left(60.0, 120.0)
    clock.now_s += 10.0
    live.draw()
    live.decided(made_verdict("workers", "kept", 1.5, 2))
    drawn = screen.getvalue()
    assert drawn.startswith("\r\x1b[2K") and " 50 s left" in drawn
    assert drawn.endswith("reordered\n") and "\r\x1b[2K kept" in drawn


def test_its_thread_moves_it_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.report.terminal.live_tune._REDRAW_S", 0.001)
    screen = Screen()
    with LiveTune(screen) as live:
        live.start()
        while screen.getvalue().count("getting ready") < 3:
            pass
    drawn = screen.getvalue()
    assert drawn.endswith("\r\x1b[2K")
    assert live._thread is not None and not live._thread.is_alive()


def test_quiet_says_nothing() -> None:
    log = Log()
    with LiveTune(log, quiet=True) as live:
        live.start()
        live.racing(["as it is"])
        live.decided(made_verdict("workers", "kept", 1.5, 2))
        live.note("x")
    assert log.getvalue() == ""


def test_a_reader_that_is_gone_does_not_stop_the_races() -> None:
    log = Log()
    live = LiveTune(log, thread=False)
    log.close()
    live.note("x")
    live.draw()
