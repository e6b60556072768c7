"""The result of `check`, `tune` and `memory` in every form that was asked for. With `-` for a file, standard output has
that and nothing else: the report, and what the script itself prints, go to standard error."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

if TYPE_CHECKING:
    from slipstream.records import Session

STDOUT = "-"


class Forms(msgspec.Struct, frozen=True, kw_only=True):
    """How the user wants it, as typed."""

    json_path: Path | None = None
    markdown_path: Path | None = None
    html: str | None = None
    no_open: bool = False
    quiet: bool = False
    options: list[str] = []  # of slipstream, before the script

    @property
    def takes_stdout(self) -> bool:
        return STDOUT in (str(self.json_path), str(self.markdown_path), self.html)


def refuse_two_on_stdout(*files: object) -> None:
    """Two documents behind each other are none."""
    if sum(str(file) == STDOUT for file in files) > 1:
        raise click.UsageError("standard output has room for one document: give the others a file in place of -")


@contextlib.contextmanager
def aside(is_wanted: bool = True) -> Iterator[None]:
    """Meanwhile what goes to standard output, of ours or of a child's, goes to standard error."""
    if not is_wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def give(session: Session, forms: Forms, remark: str = "", before_saving: Callable[[], None] = lambda: None) -> bool:
    """Whether all of it could be given, and there was nothing to remark: one form that fails does not cost the others.
    What went wrong is said on standard error."""
    from slipstream.cli.showing import noting, show, show_path
    from slipstream.runner.storage import save_session

    sentences, path = [remark] if remark else [], None
    with aside(forms.takes_stdout):
        with noting(sentences):
            show(session, quiet=forms.quiet)
        with noting(sentences):
            before_saving()
        with noting(sentences):
            path = save_session(session)
            if not forms.quiet:
                show_path(path)
    for file, write in _exports(session, forms, path):
        with noting(sentences), aside(forms.takes_stdout and file != STDOUT):
            write()
    for sentence in sentences:
        click.echo(f"slipstream: {sentence}", err=True)
    return not sentences


def _exports(session: Session, forms: Forms, saved: Path | None) -> Iterator[tuple[str, Callable[[], None]]]:
    """Which file, and what writes it."""
    from slipstream.cli.showing import export, export_html, export_markdown

    json_path, markdown_path, html = forms.json_path, forms.markdown_path, forms.html
    if json_path is not None:
        yield str(json_path), lambda: export(session, json_path)
    if markdown_path is not None:
        yield str(markdown_path), lambda: export_markdown(session, markdown_path)
    if html is not None:
        yield html, lambda: export_html(session, html, saved, no_open=forms.no_open, quiet=forms.quiet)
