"""What `tune` shows while trials race: one line that is redrawn, and one line that stays for each decision.

Where the output is not a terminal, no line is redrawn. A dot appears when nothing was printed for two seconds.
"""

from __future__ import annotations

import contextlib
import shutil
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Literal, TextIO

import msgspec

from slipstream.numbers import as_ratio, in_seconds
from slipstream.records import Recipe, Verdict
from slipstream.report.text.tune import WORDS, numerics_word, relative, single_name, was_raced
from slipstream.report.text.verdicts import reason_of

_ERASE = "\r\x1b[2K"
_REDRAW_S = 0.25
_NOTE_INDENT = 11  # cells: the column of the names of decisions
_BAR_WIDTH = 10  # cells
_SILENCE_S = 2.0  # the longest time without any output, if the output is not a terminal
_SPINNER = {True: "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", False: "|/-\\"}
_PLAIN = str.maketrans({"·": "-", "–": "-", "…": "...", "→": ">"})


class LiveTuneState(msgspec.Struct):
    """What the tuning has reported so far."""

    racing: list[str] = []
    entering: str = ""
    round: int = 0
    decided: dict[str, int] = {}  # how many techniques got each decision
    seconds_left: float | None = None
    budget_s: float = 0.0
    best: str = ""
    foreign_cores: float = 0.0  # the cores that other programs use while the tuning waits for them, else 0


def tune_line(state: LiveTuneState, elapsed_s: float, width: int, *, unicode: bool = True) -> str:
    """Returns the redrawn line, with at most `width - 1` cells. Parts that do not fit are left out, the last part
    first."""
    dot = " · " if unicode else " - "
    frames = _SPINNER[unicode]
    parts = ["", f"{in_seconds(elapsed_s)} so far"]
    if state.seconds_left is not None:
        left_s = max(state.seconds_left, 0.0)
        parts[1] = (
            f"{_bar(1.0 - left_s / state.budget_s if state.budget_s else 0.0, unicode)} {in_seconds(left_s)} left"
        )
    if state.best:
        parts.append(state.best)
    if state.decided:
        parts.append(", ".join(f"{number} {WORDS.get(name, name)}" for name, number in state.decided.items()))
    room = max(width - 1 - len(dot.join(parts[1:3])) - len(dot), 24)
    parts[0] = f"{frames[int(elapsed_s / _REDRAW_S) % len(frames)]} {_activity(state, room - 2)}"
    while len(parts) > 1 and len(dot.join(parts)) >= width:
        parts.pop()
    return _encodable(dot.join(parts), unicode)[: max(width - 1, 0)]


def _bar(share: float, unicode: bool) -> str:
    """Returns a bar that shows how much of the budget is used."""
    full = min(max(round(share * _BAR_WIDTH), 0), _BAR_WIDTH)
    return ("█" * full + "░" * (_BAR_WIDTH - full)) if unicode else ("#" * full + "." * (_BAR_WIDTH - full))


def _activity(state: LiveTuneState, room: int) -> str:
    """Returns what the tuning does now, in at most `room` characters. Names that do not fit are counted."""
    if state.foreign_cores:
        return f"another program uses {state.foreign_cores:.1f} cores: waiting"[:room]
    if not state.entering and not state.racing:
        return "getting ready"
    start, names = ("starting ", [state.entering]) if state.entering else ("", state.racing)
    if state.round > 0 and not state.entering:
        start = f"round {state.round}: "
    for num_shown in range(len(names), 0, -1):
        more = f" and {len(names) - num_shown} more" if num_shown < len(names) else ""
        line = f"{start}{', '.join(names[:num_shown])}{more}"
        if len(line) <= room:
            return line
    return line[: room - 1].rstrip(" ,") + "…"


def verdict_line(verdict: Verdict, width: int = 0, *, unicode: bool = True) -> str:
    """Returns the line that stays for a decision, cut to the terminal's width. The report has the whole reason."""
    decision = WORDS.get(verdict.decision, verdict.decision)
    fast = relative(verdict.speed) if verdict.own_ratio is None else f"~{as_ratio(verdict.own_ratio)}"
    measured = " ".join(filter(None, (fast, numerics_word(verdict.numerics))))
    name_width = 20 if 0 < width < 100 else 26
    line = f" {decision:<9} {_name(verdict):<{name_width}} {measured:<27} {reason_of(verdict)}"
    line = " ".join(line.rstrip().splitlines())
    if 40 <= width <= len(line):
        line = line[: width - 2].rstrip(" ,;:") + "…"
    return _encodable(line, unicode).rstrip()


def _name(verdict: Verdict) -> str:
    """Returns the name of what was raced. For a combination it is the last technique. For a race that leaves a
    technique out, it is the name of this technique."""
    match verdict.kind:
        case "cumulative":
            return f"+ {verdict.choice}"
        case "left_out":
            return f"{verdict.technique} in recipe"
        case "total":
            return "all together"
        case "writable":
            return "what patch writes"
        case "noise":
            return "nothing (A/A)"
        case "single":
            return single_name(verdict)


def _encodable(text: str, unicode: bool) -> str:
    """Returns the text in characters that the output can show. Control characters are replaced, because a reason may
    contain what the script printed."""
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if unicode else text.translate(_PLAIN).encode("ascii", "replace").decode()


class LiveTune:
    """Shows the progress of a tuning. Use as a context manager. After `start`, a thread redraws the line."""

    def __init__(
        self, stream: TextIO, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic, thread: bool = True
    ) -> None:
        self._stream = stream
        self._is_quiet = quiet
        self._clock = clock
        self._is_terminal = stream.isatty()
        self._unicode = (getattr(stream, "encoding", "") or "").lower().startswith("utf")
        self._state = LiveTuneState()
        self._counts: Counter[str] = Counter()
        self._start_s = self._spoke_s = clock()
        self._left_until_s: float | None = None
        self._has_dots = False
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_moving, daemon=True) if thread and not quiet else None

    # --- what a tuning reports --------------------------------------------------------------------------------------

    def racing(self, trials: Sequence[str]) -> None:
        with self._lock:
            self._state.racing, self._state.entering, self._state.round = list(trials), "", 0

    def entering(self, trial: str) -> None:
        with self._lock:
            self._state.entering = trial

    def block_done(self, trial: str, round: int) -> None:
        with self._lock:
            self._state.entering, self._state.round = "", round

    def decided(self, verdict: Verdict) -> None:
        with self._lock:
            if not was_raced(verdict) or verdict.decision == "not_applicable":
                return  # the report lists these techniques in one place
            if verdict.kind == "single":
                self._counts[verdict.decision] += 1
                self._state.decided = dict(self._counts)
            width = shutil.get_terminal_size().columns if self._is_terminal else 0
            self._say(verdict_line(verdict, width, unicode=self._unicode))

    def left(self, seconds: float, budget_s: float) -> None:
        with self._lock:
            self._left_until_s, self._state.budget_s = self._clock() + seconds, budget_s

    def best(self, recipe: Recipe, ratio: float) -> None:
        with self._lock:
            self._state.best = f"best so far ~{as_ratio(ratio)} {recipe}" if recipe.choices else ""

    def waiting(self, cores: float) -> None:
        with self._lock:
            if cores and not self._state.foreign_cores and not self._is_terminal:
                self._say(f" another program uses {cores:.1f} cores: waiting")
            self._state.foreign_cores = cores

    def note(self, sentence: str) -> None:
        with self._lock:
            line = f" {_encodable(sentence, self._unicode)}"
            if self._is_terminal:
                width = max(shutil.get_terminal_size().columns - 1, 40)
                line = textwrap.fill(line, width, subsequent_indent=" " * _NOTE_INDENT, drop_whitespace=True)
            self._say(line)

    # --- drawing -----------------------------------------------------------------------------------------------------

    @property
    def summary(self) -> str:
        """The decisions so far, for the message after Ctrl-C: "3 kept, 5 rejected". "" before the first verdict."""
        return ", ".join(f"{number} {WORDS.get(name, name)}" for name, number in self._counts.items())

    def draw(self) -> None:
        """Redraws the line, or writes a dot after a long silence."""
        with self._lock:
            now_s = self._clock()
            if self._is_terminal:
                if self._left_until_s is not None:
                    self._state.seconds_left = self._left_until_s - now_s
                width = shutil.get_terminal_size().columns
                self._write(_ERASE + tune_line(self._state, now_s - self._start_s, width, unicode=self._unicode))
            elif now_s - self._spoke_s >= _SILENCE_S:
                self._has_dots = True
                self._spoke_s = now_s
                self._write(".")

    def _say(self, line: str) -> None:
        if self._is_quiet:
            return
        before = _ERASE if self._is_terminal else "\n" if self._has_dots else ""
        self._has_dots = False
        self._spoke_s = self._clock()
        self._write(f"{before}{line}\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the output is closed; the races continue
            self._stream.write(text)
            self._stream.flush()

    def _keep_moving(self) -> None:
        while not self._over.wait(_REDRAW_S):
            self.draw()

    def start(self) -> None:
        """Starts the thread that redraws the line. Call this method after the check's own line has ended."""
        self._start_s = self._spoke_s = self._clock()
        if self._thread is not None and not self._thread.is_alive():
            self._thread.start()

    def __enter__(self) -> LiveTune:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._over.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
            self._write(_ERASE if self._is_terminal else "")
        with self._lock:
            self._write("\n" if self._has_dots else "")
            self._has_dots = False
        return False
