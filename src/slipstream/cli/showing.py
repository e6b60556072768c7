"""What `check`, `tune` and `report` print and write."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

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
    name = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    click.echo(f"\n Saved as {name}; slipstream report shows it again.")


def export(session: Session, path: Path) -> None:
    from slipstream.report.json import export as to_json

    _write(to_json(session), path)


def export_markdown(session: Session, path: Path) -> None:
    """ValueError for a session that is no tuning."""
    from slipstream.report.markdown import to_markdown

    _write(to_markdown(session).encode(), path)


def _write(data: bytes, path: Path) -> None:
    if str(path) == "-":
        sys.stdout.buffer.write(data + b"\n")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
