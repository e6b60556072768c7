"""Opening a page where somebody sits in front of a screen, and nowhere else.

`--trace`, `--tensorboard`, `--mlflow` and `--wandb` of report: a session for other programs.

The result of `check`, `tune` and `memory` in every form that was asked for. With `-` for a file, standard output has
that and nothing else: the report, and what the script itself prints, go to standard error.

What `check`, `tune` and `report` print and write."""

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
    """A terminal on a desktop: not a pipe, not another machine's, not a build server."""
    if has_terminal is None:
        has_terminal = sys.stdout.isatty()
    if not has_terminal or any(environment.get(name) for name in ("SSH_CONNECTION", "SSH_TTY", "CI")):
        return False
    if platform in ("darwin", "win32"):
        return True
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def open_page(path: Path) -> None:
    """A browser that cannot be started is no reason to fail: the file is there, and its name was printed."""
    try:
        webbrowser.open(path.resolve().as_uri())
    except (webbrowser.Error, OSError):
        return


class ExportRequest(msgspec.Struct, frozen=True):
    """As typed."""

    trace: Path | None = None
    tensorboard: Path | None = None
    mlflow: bool = False
    wandb: bool = False


def export_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives `trace`, `tensorboard`, `mlflow` and `wandb`, for `Wanted`."""
    path = click.Path(path_type=Path)
    for option in (
        click.option("--wandb", is_flag=True, help="Log it to Weights & Biases, offline, under ./wandb."),
        click.option("--mlflow", is_flag=True, help="Log it to MLflow, as a run of its own."),
        click.option("--tensorboard", type=path, metavar="DIR", help="Write scalars and the trace for TensorBoard."),
        click.option("--trace", type=path, metavar="FILE", help="Write a trace for ui.perfetto.dev; .gz packs it."),
    ):
        function = option(function)
    return function


def write_exports(session: Session, wanted: ExportRequest, *, is_aside: bool = False) -> None:
    """What it says of them goes to standard error if `is_aside`."""
    from slipstream.report.exports.trackers import log_to_mlflow, log_to_wandb

    try:
        if wanted.trace is not None:
            write_trace(session, wanted.trace, is_aside=is_aside)
        if wanted.tensorboard is not None:
            from slipstream.report.exports.tensorboard import write_tensorboard

            write_tensorboard(session, wanted.tensorboard)
            click.echo(
                f"\n Wrote {wanted.tensorboard}. Look at it: tensorboard --logdir {wanted.tensorboard}", err=is_aside
            )
    except OSError as error:
        raise Refused(f"The export cannot be written: {error}.") from None
    if wanted.mlflow:
        run = _logged("MLflow", partial(log_to_mlflow, session))
        click.echo(f"\n Logged to MLflow as run {run}.", err=is_aside)
    if wanted.wandb:
        run = _logged("Weights & Biases", partial(log_to_wandb, session, Path.cwd()))
        click.echo(f"\n Logged offline to {run}. Send it, if you want to: wandb sync {run}", err=is_aside)


def _logged(name: str, log: Callable[[], str]) -> str:
    """Whatever a tracker raises is a sentence: its server, its account and its versions are its own affair."""
    from slipstream.report.exports.trackers import MissingTrackerError

    try:
        return log()
    except MissingTrackerError as error:
        raise Refused(str(error)) from None
    except Exception as error:
        raise Refused(f"{name} did not take the session: {type(error).__name__}: {error}") from None


def write_trace(session: Session, path: Path, *, is_aside: bool = False) -> None:
    from slipstream.report.exports.trace import to_trace

    data = to_trace(session)
    write(gzip.compress(data) if path.suffix == ".gz" else data, path)
    if str(path) != "-":
        where = "Look at it: drop it on https://ui.perfetto.dev, or open it in chrome://tracing."
        click.echo(f"\n Wrote {path}. {where}", err=is_aside)


STDOUT = "-"


class OutputFormats(msgspec.Struct, frozen=True, kw_only=True):
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


def give(
    session: Session, forms: OutputFormats, remark: str = "", before_saving: Callable[[], None] = lambda: None
) -> bool:
    """Whether all of it could be given, and there was nothing to remark: one form that fails does not cost the others.
    What went wrong is said on standard error."""
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
    """Which file, and what writes it."""

    json_path, markdown_path, html = forms.json_path, forms.markdown_path, forms.html
    if json_path is not None:
        yield str(json_path), lambda: export(session, json_path)
    if markdown_path is not None:
        yield str(markdown_path), lambda: export_markdown(session, markdown_path)
    if html is not None:
        yield html, lambda: export_html(session, html, saved, no_open=forms.no_open, quiet=forms.quiet)


def show(session: Session, *, quiet: bool = False) -> None:
    """On stdout."""
    from rich.console import Console

    from slipstream.report.terminal.session import render_brief, render_session

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
    from slipstream.report.json_export.export import export as to_json

    write(to_json(session), path)


def export_markdown(session: Session, path: Path) -> None:
    """ValueError for a session that is no tuning."""
    from slipstream.report.markdown import to_markdown

    write(to_markdown(session).encode(), path)


def export_html(session: Session, html: str, saved: Path | None, *, no_open: bool = False, quiet: bool = False) -> None:
    """As `--html` asked for it: a name, standard output, or beside the session that was saved."""
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
