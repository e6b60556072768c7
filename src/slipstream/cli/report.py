"""slipstream report: show a saved session again, or export it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from slipstream.cli.group import Refused
from slipstream.cli.options import HtmlCommand, html_options
from slipstream.cli.output import STDOUT, ExportRequest, export_options, refuse_two_on_stdout, write_exports
from slipstream.records import Session


@click.command("report", cls=HtmlCommand, short_help="Show a saved session again, or export it.")
@click.argument("session", required=False)
@click.option("--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="Write the session as JSON.")
@click.option(
    "--markdown", "markdown_path", type=click.Path(path_type=Path), metavar="FILE", help="Write the table of tune."
)
@click.option(
    "--share",
    "share_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the session without paths, arguments, names and source lines, for an issue.",
)
@html_options
@export_options
@click.option(
    "--quiet", is_flag=True, help="Print only the verdict and one line for each finding, or only the table of tune."
)
def command(
    session: str | None,
    json_path: Path | None,
    markdown_path: Path | None,
    share_path: Path | None,
    html: str | None,
    no_open: bool,
    quiet: bool,
    **exports: Any,
) -> None:
    """Show a saved SESSION again, or write it in another format.

    SESSION is a file, a name or a commit, as for slipstream compare. Without it, the command shows the last session of
    this directory. Nothing is measured again.

    \b
    slipstream report
    slipstream report 20260102T030405-train        a name that slipstream history lists
    slipstream report --html                       a report for the browser
    slipstream report --json - | jq .step_ms       JSON alone on standard output
    slipstream report --markdown table.md          the table of the last tune
    slipstream report --share shared.msgpack       to attach to an issue; the page too: --share FILE --html page.html
    slipstream report --trace trace.json.gz        a trace for ui.perfetto.dev
    slipstream report --tensorboard runs/slipstream
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
    if share_path is not None:
        saved = _share(saved, share_path)
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


def _share(session: Session, path: Path) -> Session:
    """Writes the redacted session and returns it, so everything else that is shown or written is redacted too."""
    from slipstream.report.redaction import REMAINING, REMOVED, redact_session
    from slipstream.store.safe_files import write_file

    redacted = redact_session(session)
    try:
        write_file(path, msgspec.msgpack.encode(redacted))
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}.") from None
    click.echo(f"slipstream: wrote {path}. Left out: {REMOVED}. Still in it: {REMAINING}.", err=True)
    return redacted
