"""slipstream compare: show what changed between two sessions, and whether the difference is more than noise."""

from __future__ import annotations

import click

from slipstream.cli.group import Refused


@click.command("compare", short_help="Show what changed between two sessions.")
@click.argument("before", default="previous")
@click.argument("after", default="latest")
@click.option("--json", "as_json", is_flag=True, help="Print JSON to standard output, and nothing else.")
def command(before: str, after: str, as_json: bool) -> None:
    """Compare two saved sessions and show what changed between them.

    The report says whether the step time differs by more than noise, and in which phase. Use it after a change of the
    code, the machine or the software, to see whether the training became slower or faster.

    \b
    slipstream compare                                 the last two of the same script
    slipstream compare main HEAD                       measured at two commits
    slipstream compare 20260102T030405-train latest    by name, as slipstream history lists them
    slipstream compare old.msgpack new.msgpack         two files

    Two sessions were measured at different times, so they can differ because the machine was busier. Steps during
    which other programs used the cores are left out. If that leaves fewer than eight, or if other load can explain the
    difference, the report says so and draws no conclusion. slipstream tune avoids this: it measures both versions in
    turns.
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
