"""The terminal report is complete, fits its width, is plain on a plain console, and escapes the script's text."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import pytest
from rich.cells import cell_len

from slipstream.records import (
    Ceilings,
    Ending,
    IdleGpu,
    Session,
)
from slipstream.report.notebook import to_html
from slipstream.report.terminal.session import render_brief, render_session

Paint = Callable[..., str]
Sessions = dict[str, Session]


def test_advice_stands_behind_the_change_it_speaks_of(sessions: Sessions, paint: Paint) -> None:
    first = msgspec.structs.replace(sessions["slow"].findings[0], change="do(this)", advice="Or do that.")
    session = msgspec.structs.replace(sessions["slow"], findings=[first])
    text = paint(render_session, session)
    assert text.index(first.title) < text.index("do(this)") < text.index("Or do that.")
    page = to_html(session)
    assert page.index("do(this)") < page.index("Or do that.")


def test_the_slow_session(sessions: Sessions, paint: Paint) -> None:
    text = paint(render_session, sessions["slow"])
    for piece in (
        "train.py --epochs 90",
        "48 steps watched · stopped after 31 s",
        "The step waits for data 65% of the time: 63 ms a step, 22 ms if data were free.",
        "41 ms  if compute were free ◀ if nothing waited",
        "508 samples/s · 90 epochs: 14 h at this rate; 9 h if input were free",
        "up to 2.8x",
        "no_workers → loader_workers",
        "train.py:31  loader = DataLoader(photos, batch_size=32, shuffle=True)",
        'data.py:31  Image.open(self.paths[index]).convert("RGB")',
        "contractions 65%",
        "aten::convolution_backward",
        "30% of the tokens are padding",
        "attention by hand at model.py:12, 21% of the forward pass",
        "18% of the epoch is validation",
        "2 of 2 cores usable",
        "/dev/shm 67 MB",
        "checkpoint.pt",
    ):
        assert piece in text


def test_it_is_one_screen(sessions: Sessions, paint: Paint) -> None:
    assert len(paint(render_session, sessions["slow"], width=100).splitlines()) <= 40


@pytest.mark.parametrize("name", ["slow", "device", "healthy", "empty", "hostile"])
@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_lines_keep_to_the_width(sessions: Sessions, paint: Paint, name: str, width: int, encoding: str) -> None:
    """Returns all lines except those of the change, which is never shortened, so that the user can copy it."""
    changes = {"".join(finding.change[:20]) for finding in sessions[name].findings}
    for line in paint(render_session, sessions[name], width=width, encoding=encoding).splitlines():
        if not any(change in line for change in changes):
            assert cell_len(line) <= width, line


def test_ascii_has_a_letter_for_each_phase(sessions: Sessions, paint: Paint) -> None:
    text = paint(render_session, sessions["slow"], encoding="ascii")
    assert re.search(r"step +I+F+B+O*\.* ", text)
    assert "I input 41 ms 65%" in text


def test_colour_is_used_only_where_there_is_some(sessions: Sessions, paint: Paint) -> None:
    assert "\x1b[" not in paint(render_session, sessions["slow"])
    assert "\x1b[" in paint(render_session, sessions["slow"], colour=True)


@pytest.mark.parametrize("colour", [False, True])
def test_text_of_the_script_is_shown_and_not_obeyed(sessions: Sessions, paint: Paint, colour: bool) -> None:
    text = paint(render_session, sessions["hostile"], colour=colour)
    assert "[bold]x[/bold]" in text
    assert "[red]b.py:3" in text
    assert "\x1b[31mred" not in text
    assert "\x07" not in text
    assert "\u202e" not in text


def test_nothing_to_gain_is_a_sentence(sessions: Sessions, paint: Paint) -> None:
    text = paint(render_session, sessions["healthy"])
    assert "The model limits the speed: 63 ms a step, and free data would not help." in text
    assert "found nothing to gain" in " ".join(text.split())


def test_a_script_without_steps_gets_its_sentence(sessions: Sessions, paint: Paint) -> None:
    text = paint(render_session, sessions["empty"])
    assert "hello.py ran to its end in 3.1 s; no module was called" in text
    assert "machine" in text


def test_a_trial_stopped_in_its_warm_up_names_the_option_for_more_time(sessions: Sessions, paint: Paint) -> None:
    slow = msgspec.structs.replace(sessions["slow"], evaluations=[], summary=None, findings=[])
    text = paint(render_session, slow, width=160)
    said = "stopped after 31 s, in its warm-up: too few steps to measure: --seconds gives it more time."
    assert said in text


def test_a_script_that_raised_in_its_warm_up_did_not_raise_before_any_step(sessions: Sessions, paint: Paint) -> None:
    raised = Ending("raised", 1, 9.0, "IndexError: x")
    slow = msgspec.structs.replace(sessions["slow"], evaluations=[], summary=None, findings=[], ending=raised)
    text = paint(render_session, slow, width=160)
    assert ", in its warm-up: IndexError: x" in text
    text = paint(render_session, msgspec.structs.replace(slow, steps=[]), width=160)
    assert ", before any step: IndexError: x" in text


def test_evaluation_alone_is_reported(sessions: Sessions, paint: Paint) -> None:
    session = msgspec.structs.replace(sessions["empty"], evaluations=sessions["slow"].evaluations)
    text = paint(render_brief, session, width=120)
    assert "no training step was seen, but evaluation was: 1 stretch, 40 batches, 2.4 s." in text


def test_a_sanity_check_before_the_first_step_is_not_counted(sessions: Sessions, paint: Paint) -> None:
    (seen,) = sessions["slow"].evaluations
    session = msgspec.structs.replace(
        sessions["slow"], evaluations=[msgspec.structs.replace(seen, after_step=-1, num_batches=2), seen]
    )
    for width in (70, 200):
        text = " ".join(paint(render_session, session, width=width).split())
        assert "1 stretch, 40 batches, 2.4 s; not counting one before the first step" in text


def test_the_device_has_a_bar_of_its_own(sessions: Sessions, paint: Paint) -> None:
    text = paint(render_session, sessions["device"])
    assert re.search(r"^ host ", text, re.MULTILINE)
    assert re.search(r"^ device ", text, re.MULTILINE)
    assert "NVIDIA A10G 24 GB" in text
    assert "GPU busy 30%" in text


def test_an_unused_gpu_is_reported_at_the_top(sessions: Sessions, paint: Paint) -> None:
    session, with_gpu = sessions["slow"], sessions["device"]
    environment = msgspec.structs.replace(session.environment, gpus=with_gpu.environment.gpus)
    idle = msgspec.structs.replace(session, environment=environment)
    sentence = "The device is the CPU although a GPU is present (NVIDIA A10G)"
    assert sentence in paint(render_session, idle)
    assert sentence in paint(render_brief, idle)
    assert sentence not in paint(render_session, with_gpu)
    noted = msgspec.structs.replace(idle, idle_gpu=IdleGpu("NVIDIA A10G", "invisible"))
    text = " ".join(paint(render_session, noted).split())
    assert text.count(sentence) == 1 and f"{sentence}: torch cannot see it." in text


def test_quiet_is_the_verdict_and_a_line_each(sessions: Sessions, paint: Paint) -> None:
    lines = paint(render_brief, sessions["slow"]).splitlines()
    assert len(lines) == 3
    assert lines[1].endswith("train.py:31")


def test_files_of_the_script_are_gone_only_under_an_overlay(sessions: Sessions, paint: Paint) -> None:
    assert "wrote checkpoint.pt; discarded" in paint(render_session, sessions["slow"])
    real = paint(render_session, msgspec.structs.replace(sessions["slow"], no_overlay="--no-overlay"))
    assert "wrote checkpoint.pt." in real and "No throw-away file system was possible (--no-overlay)" in real


def test_missing_ceilings_say_why(sessions: Sessions, paint: Paint) -> None:
    session = sessions["slow"]
    assert session.summary is not None
    ceilings = Ceilings(notes=["No batch could be kept: the loader is a generator."])
    summary = msgspec.structs.replace(session.summary, ceilings=ceilings, bound="unknown")
    text = paint(render_session, msgspec.structs.replace(session, summary=summary))
    assert text.count("No batch could be kept: the loader is a generator.") == 1


def test_a_watched_program_has_no_ceilings(sessions: Sessions, paint: Paint) -> None:
    session = sessions["slow"]
    summary = msgspec.structs.replace(session.summary, ceilings=Ceilings())
    text = paint(render_session, msgspec.structs.replace(session, command="watch", script=[], summary=summary))
    assert "ceilings none while watching; slipstream check measures them" in text
    assert "slipstream watch  this program" in text


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (Ending("finished", 3, 3.1), "ran to its end in 3.1 s, exit code 3"),
        (Ending("raised", 1, 9.0, "ValueError: [x]"), "ValueError: [x]"),
        (Ending("raised", 2, 9.0, "SystemExit: 2"), "ended itself with exit code 2 after 9 s"),
        (Ending("raised", 1, 9.0, "SystemExit: no data"), "SystemExit: no data"),
        (Ending("interrupted", 130, 12.0), "interrupted after 12 s"),
        (Ending("killed", -9, 12.0), "killed after 12 s"),
    ],
)
def test_endings(sessions: Sessions, paint: Paint, ending: Ending, words: str) -> None:
    assert words in paint(render_session, msgspec.structs.replace(sessions["slow"], ending=ending))


def test_an_exit_code_is_not_repeated(sessions: Sessions, paint: Paint) -> None:
    """argparse ends a script with wrong arguments in this way."""
    empty = msgspec.structs.replace(sessions["empty"], ending=Ending("raised", 2, 0.2, "SystemExit: 2"))
    text = paint(render_session, empty, width=160)
    assert "ended itself with exit code 2 after 200 ms, before any step." in text and "SystemExit" not in text


def test_a_wait_that_free_data_did_not_shorten_is_called_noise(sessions: Sessions, paint: Paint) -> None:
    session = sessions["slow"]
    summary = msgspec.structs.replace(session.summary, ceilings=Ceilings(compute_ms=70.0))
    text = paint(render_brief, msgspec.structs.replace(session, summary=summary), width=160)
    assert "63 ms a step; too noisy to say how much free data would help." in text


@pytest.mark.parametrize("bound", ["input", "compute", "cores", "other", "unknown"])
def test_every_bound_has_a_sentence(sessions: Sessions, paint: Paint, bound: str) -> None:
    session = sessions["slow"]
    summary = msgspec.structs.replace(session.summary, bound=bound)
    [verdict, *_] = paint(render_brief, msgspec.structs.replace(session, summary=summary), width=200).splitlines()
    assert "63 ms a step" in verdict
    assert verdict.endswith(".")
