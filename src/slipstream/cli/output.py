"""What `check`, `tune`, `memory` and `report` print and write, in every format that the user asked for.

If the user gives `-` as a file, standard output receives the document of this option and nothing else. Everything else
that the command and the script print then goes to standard error.

`--trace`, `--tensorboard`, `--mlflow` and `--wandb` export a session for other programs. An HTML report is opened in
the browser only if the command runs in a terminal on a desktop.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import sys
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from slipstream.cli.group import Refused
from slipstream.cli.options import BESIDE
from slipstream.records import Session
from slipstream.store.sessions import StorageError

if TYPE_CHECKING:
    from slipstream.records import Session


def is_desktop(
    environment: Mapping[str, str] = os.environ, platform: str = sys.platform, has_terminal: bool | None = None
) -> bool:
    """Whether this is a terminal on a desktop, and not a pipe, a remote login or a build server."""
    if has_terminal is None:
        has_terminal = sys.stdout.isatty()
    if not has_terminal or any(environment.get(name) for name in ("SSH_CONNECTION", "SSH_TTY", "CI")):
        return False
    if platform in ("darwin", "win32"):
        return True
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def open_page(path: Path) -> None:
    """Opens the file in a browser. A failure is ignored, because the file exists."""
    try:
        webbrowser.open(path.resolve().as_uri())
    except (webbrowser.Error, OSError):
        return


class ExportRequest(msgspec.Struct, frozen=True):
    """The export options that the user gave."""

    trace: Path | None = None
    tensorboard: Path | None = None
    mlflow: bool = False
    wandb: bool = False


def export_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options `trace`, `tensorboard`, `mlflow` and `wandb`. Their values are the fields of an
    `ExportRequest`."""
    path = click.Path(path_type=Path)
    for option in (
        click.option("--wandb", is_flag=True, help="Log the session to Weights & Biases, offline, in ./wandb."),
        click.option("--mlflow", is_flag=True, help="Log the session to MLflow as a new run."),
        click.option("--tensorboard", type=path, metavar="DIR", help="Write scalars and a trace for TensorBoard."),
        click.option("--trace", type=path, metavar="FILE", help="Write a trace for ui.perfetto.dev; .gz compresses."),
    ):
        function = option(function)
    return function


def write_exports(session: Session, wanted: ExportRequest, *, is_aside: bool = False) -> None:
    """Writes the exports and prints where they are, on standard error if `is_aside`."""
    from slipstream.report.exports.trackers import MissingTrackerError, log_to_mlflow, log_to_wandb

    try:
        if wanted.trace is not None:
            write_trace(session, wanted.trace, is_aside=is_aside)
        if wanted.tensorboard is not None:
            from slipstream.report.exports.tensorboard import write_tensorboard

            write_tensorboard(session, wanted.tensorboard)
            click.echo(
                f"\n Wrote {wanted.tensorboard}. Show it with: tensorboard --logdir {wanted.tensorboard}", err=is_aside
            )
    except MissingTrackerError as error:
        raise Refused(str(error)) from None
    except OSError as error:
        raise Refused(f"The export cannot be written: {error}.") from None
    if wanted.mlflow:
        run = _logged("MLflow", partial(log_to_mlflow, session))
        click.echo(f"\n Logged to MLflow as run {run}.", err=is_aside)
    if wanted.wandb:
        run = _logged("Weights & Biases", partial(log_to_wandb, session, Path.cwd()))
        click.echo(f"\n Logged offline to {run}. To upload it: wandb sync {run}", err=is_aside)


def _logged(name: str, log: Callable[[], str]) -> str:
    """Calls `log` and turns every exception of the tracker into a message.

    slipstream cannot foresee which exceptions the tracker's server, account or version causes.
    """
    from slipstream.report.exports.trackers import MissingTrackerError

    try:
        return log()
    except MissingTrackerError as error:
        raise Refused(str(error)) from None
    except Exception as error:
        raise Refused(f"{name} could not log the session: {type(error).__name__}: {error}") from None


def write_trace(session: Session, path: Path, *, is_aside: bool = False) -> None:
    from slipstream.report.exports.trace import to_trace

    data = to_trace(session)
    write(gzip.compress(data) if path.suffix == ".gz" else data, path)
    if str(path) != "-":
        where = "To look at it, open it at https://ui.perfetto.dev or in chrome://tracing."
        click.echo(f"\n Wrote {path}. {where}", err=is_aside)


STDOUT = "-"


class OutputFormats(msgspec.Struct, frozen=True, kw_only=True):
    """The output formats that the user asked for."""

    json_path: Path | None = None
    markdown_path: Path | None = None
    html: str | None = None
    no_open: bool = False
    quiet: bool = False
    options: list[str] = []  # the options of slipstream, which stand before the script

    @property
    def takes_stdout(self) -> bool:
        return STDOUT in (str(self.json_path), str(self.markdown_path), self.html)


def refuse_two_on_stdout(*files: object) -> None:
    """Raises a usage error if more than one document would go to standard output, because no reader could separate
    them."""
    if sum(str(file) == STDOUT for file in files) > 1:
        raise click.UsageError("only one document can go to standard output: give the others a file instead of -")


@contextlib.contextmanager
def aside(is_wanted: bool = True) -> Iterator[None]:
    """While the block runs, sends standard output to standard error, for this process and its child processes."""
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


def give(
    session: Session, forms: OutputFormats, remark: str = "", before_saving: Callable[[], None] = lambda: None
) -> bool:
    """Prints the session, saves it, and writes every format that the user asked for.

    A format that fails does not prevent the others. Errors, and `remark` if there is one, go to standard error.
    Returns True if there were no errors and no remark.
    """
    from slipstream.store.sessions import save_session

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


def _exports(session: Session, forms: OutputFormats, saved: Path | None) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yields each file that the user asked for, with a function that writes this file."""
    json_path, markdown_path, html = forms.json_path, forms.markdown_path, forms.html
    if json_path is not None:
        yield str(json_path), lambda: export(session, json_path)
    if markdown_path is not None:
        yield str(markdown_path), lambda: export_markdown(session, markdown_path)
    if html is not None:
        yield html, lambda: export_html(session, html, saved, no_open=forms.no_open, quiet=forms.quiet)


def show(session: Session, *, quiet: bool = False) -> None:
    """Prints the session on standard output."""
    from rich.console import Console

    from slipstream.report.terminal.session import render_brief, render_session

    console = Console(highlight=False)
    (render_brief if quiet else render_session)(session, console)


@contextlib.contextmanager
def noting(sentences: list[str]) -> Iterator[None]:
    """Appends the message of a StorageError or OSError to `sentences`, so that the other formats are still written."""
    try:
        yield
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except (StorageError, OSError) as error:
        sentences.append(str(error))


def show_path(path: Path) -> None:
    click.echo(f"\n Saved as {_short(path)}; slipstream report shows it again.")


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def export(session: Session, path: Path) -> None:
    from slipstream.report.json_export.export import export as to_json

    write(to_json(session), path)


def export_markdown(session: Session, path: Path) -> None:
    """Writes the table of a tuning as Markdown. Raises ValueError if the session has no tuning."""
    from slipstream.report.markdown import to_markdown

    write(to_markdown(session).encode(), path)


def export_html(session: Session, html: str, saved: Path | None, *, no_open: bool = False, quiet: bool = False) -> None:
    """Writes the HTML report to a file, to standard output, or next to the saved session, as `html` says."""
    from slipstream.report.html.page import to_page

    if html == BESIDE and saved is None:
        raise StorageError(
            "The session was not saved, so the HTML report cannot be written next to it. Name a file: --html page.html"
        )
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
