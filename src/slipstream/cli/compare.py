"""slipstream compare: two sessions, what changed between them, and whether it is more than noise."""

from __future__ import annotations

import click

from slipstream.cli.group import Refused


@click.command("compare", short_help="What changed between two sessions, beyond noise?")
@click.argument("before", default="previous")
@click.argument("after", default="latest")
@click.option("--json", "as_json", is_flag=True, help="As JSON, on standard output, and nothing else.")
def command(before: str, after: str, as_json: bool) -> None:
    """Compare two sessions: what changed, whether the step's difference is more than noise, and in which phase.

    \b
    slipstream compare                                 the last two of the same script
    slipstream compare main HEAD                       measured at two commits
    slipstream compare 20260102T030405-train latest    by name, as slipstream history lists them
    slipstream compare old.msgpack new.msgpack

    Sessions of different times can differ by the machine alone. For a proof, let both take turns: slipstream tune.
    """
    from rich.console import Console

    from slipstream.report.terminal.comparison import render_comparison, to_json
    from slipstream.store.lookup import find_session
    from slipstream.store.sessions import StorageError, load_session
    from slipstream.verify.session_diff import compare

    try:
        paths = (find_session(before, is_timed=True), find_session(after, is_timed=True))
        sessions = (load_session(paths[0]), load_session(paths[1]))
    except StorageError as error:
        raise Refused(str(error)) from None
    result = compare(*sessions, (paths[0].stem, paths[1].stem))
    if as_json:
        click.echo(to_json(result))
    else:
        render_comparison(result, Console(highlight=False))
