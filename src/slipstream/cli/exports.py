"""`--trace`, `--tensorboard`, `--mlflow` and `--wandb` of report: a session for other programs."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from slipstream.cli.commands import Refused
from slipstream.records import Session


class Wanted(msgspec.Struct, frozen=True):
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


def give(session: Session, wanted: Wanted, *, is_aside: bool = False) -> None:
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
    from slipstream.report.exports.trackers import MissingError

    try:
        return log()
    except MissingError as error:
        raise Refused(str(error)) from None
    except Exception as error:
        raise Refused(f"{name} did not take the session: {type(error).__name__}: {error}") from None


def write_trace(session: Session, path: Path, *, is_aside: bool = False) -> None:
    from slipstream.cli.showing import write
    from slipstream.report.exports.trace import to_trace

    data = to_trace(session)
    write(gzip.compress(data) if path.suffix == ".gz" else data, path)
    if str(path) != "-":
        where = "Look at it: drop it on https://ui.perfetto.dev, or open it in chrome://tracing."
        click.echo(f"\n Wrote {path}. {where}", err=is_aside)
