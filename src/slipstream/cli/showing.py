"""What `check`, `tune` and `report` print and write."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from slipstream.cli.html_option import BESIDE
from slipstream.records import Session
from slipstream.runner.storage import StorageError


def show(session: Session, *, quiet: bool = False) -> None:
    """On stdout."""
    from rich.console import Console

    from slipstream.report.terminal import render_brief, render_session

    console = Console(highlight=False)
    (render_brief if quiet else render_session)(session, console)


@contextlib.contextmanager
def noting(sentences: list[str]) -> Iterator[None]:
    """One way of giving the result that fails must not cost the user the others."""
    try:
        yield
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except (StorageError, OSError) as error:
        sentences.append(str(error))


def show_path(path: Path) -> None:
    click.echo(f"\n Saved as {_short(path)}; slipstream report shows it again.")


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def export(session: Session, path: Path) -> None:
    from slipstream.report.json import export as to_json

    write(to_json(session), path)


def export_markdown(session: Session, path: Path) -> None:
    """ValueError for a session that is no tuning."""
    from slipstream.report.markdown import to_markdown

    write(to_markdown(session).encode(), path)


def export_html(session: Session, html: str, saved: Path | None, *, no_open: bool = False, quiet: bool = False) -> None:
    """As `--html` asked for it: a name, standard output, or beside the session that was saved."""
    from slipstream.cli.desktop import is_desktop, open_page
    from slipstream.report.html.page import to_page

    if html == BESIDE and saved is None:
        raise StorageError("There is no place for the HTML report beside a session that was not saved; name one.")
    path = saved.with_suffix(".html") if html == BESIDE and saved is not None else Path(html)
    write(to_page(session).encode("utf-8", "replace"), path)
    if html == "-":
        return
    if not quiet:
        click.echo(f"\n Wrote {_short(path)}, a report for the browser.")
    if not no_open and is_desktop():
        open_page(path)


def write(data: bytes, path: Path) -> None:
    if str(path) == "-":
        sys.stdout.buffer.write(data + b"\n")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
