"""Options that several commands share.

`--baseline SESSION` and `--fail-under RATIO` let a check fail a build when the step became slower.

`--html [FILE]` and `--no-open` control the HTML report. If the user leaves out the file, the next word is the script or
the session. slipstream must not overwrite this script or session with the report.
"""

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
    least: float  # the lowest speed, relative to the baseline, that passes


def gate_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options whose values `baseline` and `fail_under` go to `read_gate`."""
    function = click.option(
        "--fail-under",
        type=click.FloatRange(min=0.0, min_open=True),
        default=None,
        metavar="R",
        help=f"Exit with {EXIT_SLOWER} if the speed is less than R times that of the baseline, beyond the noise."
        f" Default: {LEAST:g}.",
    )(function)
    return click.option(
        "--baseline",
        default=None,
        metavar="SESSION",
        help="Compare with this session: a file, a name or a commit, as for slipstream compare.",
    )(function)


def no_network_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the option whose value goes to `require_network_namespace`."""
    return click.option(
        "--no-network", is_flag=True, help="Give the script no network but loopback, so that it uploads nothing."
    )(function)


def require_network_namespace(is_wanted: bool) -> None:
    """Refuses the option if the system does not allow a network namespace."""
    if not is_wanted:
        return
    from slipstream.sandbox.network import obstacle

    if reason := obstacle():
        raise Refused(
            f"--no-network is not possible here: this system does not allow a network namespace ({reason}). Nothing was"
            " run. Without the option the script can reach the network; trackers that slipstream knows stay offline."
        )


def read_gate(baseline: str | None, fail_under: float | None, script: Sequence[str] = ()) -> SpeedGate | None:
    """Loads the baseline, or returns None if the user named none. The baseline is loaded before the check, so that a
    missing baseline does not waste a measurement."""
    from slipstream.store.lookup import find_session
    from slipstream.store.sessions import StorageError, load_session

    if baseline is None:
        if fail_under is not None:
            raise click.UsageError("--fail-under needs a session to compare with: give --baseline SESSION too")
        return None
    try:
        path: Path = find_session(baseline, is_timed=True, script=script)
        session = load_session(path)
    except StorageError as error:
        raise Refused(str(error)) from None
    if session.summary is None:
        raise Refused(f"The baseline {path.stem} has no training step, so there is nothing to compare with.")
    return SpeedGate(session, path.stem, LEAST if fail_under is None else fail_under)


def judge(gate: SpeedGate, session: Session, *, is_aside: bool = False) -> int:
    """Compares the session with the baseline, prints one line, and returns the exit code.

    The line goes to standard error if `is_aside`. The check fails if the speed is below `gate.least` and the slowdown
    is more than noise, because users soon ignore a build that fails at random. The check does not fail if the
    comparison is unsure. The comparison is unsure if there are too few undisturbed steps, or if the load of other
    programs can explain the difference. Without any step the check fails, because a script without steps would hide
    every slowdown."""
    from slipstream.report.terminal.comparison import gate_line
    from slipstream.verify.session_diff import compare

    result = compare(gate.baseline, session, (gate.name, "this session"))
    is_slower = result.ratio is None or (result.ratio < gate.least and result.outcome == "slower")
    click.echo(f"slipstream: {gate_line(result, gate.least, has_failed=is_slower)}", err=is_aside)
    return EXIT_SLOWER if is_slower else 0


OPTION: Final = "--html"
BESIDE: Final = "beside the session"  # the value of --html without a file
_ENDINGS: Final = (".html", ".htm")
_TYPED: Final = "slipstream.typed"


class HtmlCommand(click.Command):
    """A command with `--html [FILE]`. It also stores the words that the user typed, for `typed_options`.

    The word after `--html` is its file only if it is `-` or ends in .html or .htm.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_TYPED] = list(args)
        return super().parse_args(ctx, self._joined(ctx, list(args)))

    def _joined(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Joins `--html page.html` to one word, and adds the default to `--html` without a file.

        Words after the script's name belong to the script and are not changed.
        """
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
    """Adds the options for `html` (None, BESIDE, "-" or a file name) and `no_open`. The command must be an
    HtmlCommand."""
    function = click.option("--no-open", is_flag=True, help="Do not open the HTML report.")(function)
    return click.option(
        OPTION,
        callback=_read_page,
        metavar="[FILE]",
        help="Write an HTML report and open it, if this is a desktop. Default for FILE: next to the saved session.",
    )(function)


def typed_options() -> list[str]:
    """Returns the words before the script, as the user typed them. `-m` is left out because it belongs to the
    script."""
    context = click.get_current_context()
    typed: list[str] = context.meta.get(_TYPED, [])
    script = context.params.get("script") or ()
    return [word for word in typed[: len(typed) - len(script)] if word != "-m"]


def _read_page(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and value != BESIDE and not _is_page(value):
        raise click.BadParameter(f"the name of the file must end in .html, but it is {value!r}.")
    return value


def _is_page(word: str) -> bool:
    return word == "-" or word.lower().endswith(_ENDINGS)
