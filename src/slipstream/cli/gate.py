"""`--baseline SESSION` and `--fail-under RATIO`: a check that fails a build when the step became slower."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from slipstream.cli.commands import Refused
from slipstream.records import Session

EXIT_SLOWER: Final = 3
LEAST: Final = 0.95


class Gate(msgspec.Struct, frozen=True):
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


def read_gate(baseline: str | None, fail_under: float | None, script: Sequence[str] = ()) -> Gate | None:
    """Before anything is measured: a baseline that cannot be read must not cost a minute."""
    from slipstream.runner.lookup import find_session
    from slipstream.runner.storage import StorageError, load_session

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
    return Gate(session, path.stem, LEAST if fail_under is None else fail_under)


def judge(gate: Gate, session: Session, *, is_aside: bool = False) -> int:
    """Says one line, on standard error if `is_aside`. Slower has to be more than noise: a build that fails at random
    is soon ignored."""
    from slipstream.report.comparison import gate_line
    from slipstream.verify.between import compare

    result = compare(gate.baseline, session, (gate.name, "this session"))
    is_slower = result.ratio is None or (result.ratio < gate.least and result.outcome == "slower")
    click.echo(f"slipstream: {gate_line(result, gate.least, has_failed=is_slower)}", err=is_aside)
    return EXIT_SLOWER if is_slower else 0
