"""slipstream report: show a saved session again."""

from __future__ import annotations

from pathlib import Path

import click

from slipstream.cli.commands import Refused
from slipstream.cli.html_option import HtmlCommand, html_options


@click.command("report", cls=HtmlCommand)
@click.argument("session", required=False, type=click.Path(path_type=Path))
@click.option("--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="Write it as JSON.")
@click.option(
    "--markdown", "markdown_path", type=click.Path(path_type=Path), metavar="FILE", help="Write tune's table."
)
@html_options
@click.option("--quiet", is_flag=True, help="The verdict and one line for each finding; of a tuning the table.")
def command(
    session: Path | None,
    json_path: Path | None,
    markdown_path: Path | None,
    html: str | None,
    no_open: bool,
    quiet: bool,
) -> None:
    """Show a saved SESSION again; without one, the last of this directory.

    \b
    slipstream report
    slipstream report --html                       to look at in a browser
    slipstream report --json result.json
    slipstream report --markdown table.md          of the last tune
    slipstream report .slipstream/sessions/20260102T030405-train.msgpack
    """
    from slipstream.cli.showing import export, export_html, export_markdown, show
    from slipstream.runner.storage import StorageError, latest, load_session

    path = session or latest()
    if path is None:
        raise Refused(f"No session is saved in {Path.cwd() / '.slipstream'}. Make one: slipstream check train.py")
    try:
        saved = load_session(path)
    except StorageError as error:
        raise Refused(str(error)) from None
    if html != "-":
        show(saved, quiet=quiet)
    if json_path is not None:
        export(saved, json_path)
    if markdown_path is not None:
        try:
            export_markdown(saved, markdown_path)
        except ValueError as error:
            raise Refused(f"{error}.") from None
    if html is not None:
        try:
            export_html(saved, html, path, no_open=no_open, quiet=quiet)
        except OSError as error:
            raise Refused(f"The HTML report cannot be written: {error}.") from None
