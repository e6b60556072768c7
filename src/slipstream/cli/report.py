"""slipstream report: show a saved session again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slipstream.cli.group import Refused
from slipstream.cli.options import HtmlCommand, html_options
from slipstream.cli.output import STDOUT, ExportRequest, export_options, refuse_two_on_stdout, write_exports


@click.command("report", cls=HtmlCommand, short_help="Show a session again; as a page, a table, a trace.")
@click.argument("session", required=False)
@click.option("--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="Write it as JSON.")
@click.option(
    "--markdown", "markdown_path", type=click.Path(path_type=Path), metavar="FILE", help="Write tune's table."
)
@html_options
@export_options
@click.option("--quiet", is_flag=True, help="The verdict and one line for each finding; of a tuning the table.")
def command(
    session: str | None,
    json_path: Path | None,
    markdown_path: Path | None,
    html: str | None,
    no_open: bool,
    quiet: bool,
    **exports: Any,
) -> None:
    """Show a saved SESSION again: a file, or a name or commit as for compare; without one, the last of this directory.

    \b
    slipstream report
    slipstream report --html                       to look at in a browser
    slipstream report --json - | jq .step_ms       standard output has the document alone
    slipstream report --markdown table.md          of the last tune
    slipstream report --trace trace.json.gz        for ui.perfetto.dev
    slipstream report --tensorboard runs/slipstream
    slipstream report 20260102T030405-train        as slipstream history lists it
    """
    from slipstream.cli.output import export, export_html, export_markdown, show
    from slipstream.store.lookup import find_session
    from slipstream.store.sessions import StorageError, load_session

    files = (json_path, markdown_path, html, exports["trace"])
    refuse_two_on_stdout(*files)
    try:
        path = find_session(session or "latest")
        saved = load_session(path)
    except StorageError as error:
        raise Refused(str(error)) from None
    taken = STDOUT in map(str, files)
    if not taken:
        show(saved, quiet=quiet)
    if json_path is not None:
        export(saved, json_path)
    if markdown_path is not None:
        try:
            export_markdown(saved, markdown_path)
        except ValueError as error:
            raise Refused(f"{error}.") from None
    write_exports(saved, ExportRequest(**exports), is_aside=taken)
    if html is not None:
        try:
            export_html(saved, html, path, no_open=no_open, quiet=quiet or taken)
        except OSError as error:
            raise Refused(f"The HTML report cannot be written: {error}.") from None
