"""`--baseline SESSION` and `--fail-under RATIO`: a check that fails a build when the step became slower.

`--html [FILE]` and `--no-open`. The file may be left out: what follows is then the script or the session, and must
never be taken for a file to write over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from slipstream.cli.group import Refused
from slipstream.records import Session

EXIT_SLOWER: Final = 3
LEAST: Final = 0.95


class SpeedGate(msgspec.Struct, frozen=True):
    baseline: Session
    name: str
    least: float  # speed relative to the baseline


def gate_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives `baseline` and `fail_under`, for `read_gate`."""
    function = click.option(
        "--fail-under",
        type=click.FloatRange(min=0.0, min_open=True),
        default=None,
        metavar="R",
        help=f"Exit with {EXIT_SLOWER} if less than R times as fast as the baseline; {LEAST:g} unless told.",
    )(function)
    return click.option(
        "--baseline",
        default=None,
        metavar="SESSION",
        help="Compare with this session: a file, or a name or commit as for slipstream compare.",
    )(function)


def read_gate(baseline: str | None, fail_under: float | None, script: Sequence[str] = ()) -> SpeedGate | None:
    """Before anything is measured: a baseline that cannot be read must not cost a minute."""
    from slipstream.store.lookup import find_session
    from slipstream.store.sessions import StorageError, load_session

    if baseline is None:
        if fail_under is not None:
            raise click.UsageError("--fail-under compares with something: give --baseline SESSION too")
        return None
    try:
        path: Path = find_session(baseline, is_timed=True, script=script)
        session = load_session(path)
    except StorageError as error:
        raise Refused(str(error)) from None
    if session.summary is None:
        raise Refused(f"The baseline {path.stem} has seen no step, so there is nothing to compare with.")
    return SpeedGate(session, path.stem, LEAST if fail_under is None else fail_under)


def judge(gate: SpeedGate, session: Session, *, is_aside: bool = False) -> int:
    """Says one line, on standard error if `is_aside`. Slower has to be more than noise: a build that fails at random
    is soon ignored."""
    from slipstream.report.terminal.comparison import gate_line
    from slipstream.verify.session_diff import compare

    result = compare(gate.baseline, session, (gate.name, "this session"))
    is_slower = result.ratio is None or (result.ratio < gate.least and result.outcome == "slower")
    click.echo(f"slipstream: {gate_line(result, gate.least, has_failed=is_slower)}", err=is_aside)
    return EXIT_SLOWER if is_slower else 0


OPTION: Final = "--html"
BESIDE: Final = "beside the session"  # stands for the file where none was named
_ENDINGS: Final = (".html", ".htm")
_TYPED: Final = "slipstream.typed"


class HtmlCommand(click.Command):
    """Takes what follows `--html` for its file only if it ends like one. Remembers what was typed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_TYPED] = list(args)
        return super().parse_args(ctx, self._joined(ctx, list(args)))

    def _joined(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`--html page.html` as one word, a bare `--html` with the default in it. From a script's name on, words are
        the script's own."""
        done: list[str] = []
        while args and args[0] != "--" and (args[0].startswith("-") or ctx.allow_interspersed_args):
            word = args.pop(0)
            if word == OPTION:
                done.append(f"{OPTION}={args.pop(0) if args and _is_page(args[0]) else BESIDE}")
            elif self._wants_value(word) and args:
                done += [word, args.pop(0)]
            else:
                done.append(word)
        return done + args

    def _wants_value(self, word: str) -> bool:
        options = (param for param in self.params if isinstance(param, click.Option))
        return any(word in option.opts and not option.is_flag and not option.count for option in options)


def html_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives `html` (None, BESIDE, "-" or a name) and `no_open`; the command must be an HtmlCommand."""
    function = click.option("--no-open", is_flag=True, help="Do not open the HTML report.")(function)
    return click.option(
        OPTION,
        callback=_read_page,
        metavar="[FILE]",
        help="Write a report to look at, and open it on a desktop; beside the session unless FILE is given.",
    )(function)


def typed_options() -> list[str]:
    """The words before the script, as the user typed them, without `-m`: that belongs to the script."""
    context = click.get_current_context()
    typed: list[str] = context.meta.get(_TYPED, [])
    script = context.params.get("script") or ()
    return [word for word in typed[: len(typed) - len(script)] if word != "-m"]


def _read_page(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and value != BESIDE and not _is_page(value):
        raise click.BadParameter(f"the file must end in .html, and this is {value!r}.")
    return value


def _is_page(word: str) -> bool:
    return word == "-" or word.lower().endswith(_ENDINGS)
