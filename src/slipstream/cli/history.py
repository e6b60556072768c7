"""slipstream history: list the saved sessions of this directory, newest first."""

from __future__ import annotations

from pathlib import Path

import click

from slipstream.cli.group import Refused


@click.command("history", short_help="List the sessions that were saved here.")
@click.argument("script", required=False, default="")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="List at most N sessions."
)
@click.option("--all", "is_all", is_flag=True, help="List all sessions.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON to standard output, and nothing else.")
def command(script: str, limit: int, is_all: bool, as_json: bool) -> None:
    """List the saved sessions of this directory, newest first.

    With SCRIPT, list only the sessions whose command line contains it. Use the names in the list with slipstream
    report, to show a session again, and with slipstream compare.

    \b
    slipstream history
    slipstream history train.py --limit 50
    slipstream history --all --json

    A + after a commit means that there were uncommitted changes.
    """
    from rich.console import Console

    from slipstream.numbers import plural
    from slipstream.report.terminal.history import render_history, to_json
    from slipstream.store.index import entries
    from slipstream.store.sessions import FOLDER

    folder = Path.cwd() / FOLDER
    found = entries(folder, None if is_all else limit + 1, script)
    shown = found if is_all else found[:limit]
    if as_json:
        click.echo(to_json(shown))
        return
    if not found:
        whose = f" of {script!r}" if script else ""
        raise Refused(f"No session{whose} is saved in {folder}. Make one: slipstream check train.py")
    render_history(shown, Console(highlight=False))
    if len(found) > len(shown):
        click.echo(f" The newest {plural(len(shown), 'session')}; --all shows every one.")
