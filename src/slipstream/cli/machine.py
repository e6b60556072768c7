"""slipstream machine: how fast is this computer, and does anything look wrong?"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slipstream.cli.group import Action, Refused

if TYPE_CHECKING:
    from slipstream.records import SpeedTest


@click.command("machine", short_help="The speed test of this computer.")
@click.option("--quick", is_flag=True, help="Less exact, in a third of the time.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path(),
    metavar="DIR",
    help="Whose disk is read: where your data lies. Otherwise that of this directory.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON, on standard output, and nothing else.")
@click.option("--last", is_flag=True, help="Measure nothing: show the last test of this directory again.")
def command(quick: bool, folder: Path, as_json: bool, last: bool) -> Action:
    """Test the speed of this computer in about half a minute: disk, image decoding, memory, matrix multiplication in
    every precision, copies to the device, process starts, a loader's hand-over. Each against what is usual.

    \b
    slipstream machine
    slipstream machine --folder /data/imagenet         another disk
    slipstream machine --quick --json
    slipstream machine --last

    Do nothing else meanwhile: everything that runs beside it makes it slower.
    """
    return functools.partial(_test, quick, folder.resolve(), as_json, last)


def _test(quick: bool, folder: Path, as_json: bool, last: bool) -> int:
    from rich.console import Console

    from slipstream.report.terminal.speedtest import render_machine, to_json
    from slipstream.store.sessions import StorageError, load_speedtest, save_speedtest

    try:
        test = load_speedtest() if last else None
    except StorageError as error:
        return _refuse(str(error))
    path, sentence = None, ""
    try:
        if test is None:
            test = _measure(quick, folder, show=not as_json)
            path = save_speedtest(test)
    except StorageError as error:  # it is shown all the same
        sentence = str(error)
    except OSError as error:
        return _refuse(f"{error.filename or folder}: {error.strerror}.")
    except KeyboardInterrupt:
        return 130
    assert test is not None
    if as_json:
        click.echo(to_json(test))
    else:
        render_machine(test, Console(highlight=False))
        if path is not None:
            click.echo("\n Saved; slipstream machine --last shows it again.")
    return _refuse(sentence) if sentence else 0


def _refuse(sentence: str) -> int:
    refusal = Refused(sentence)
    refusal.show()
    return refusal.exit_code


def _measure(quick: bool, folder: Path, *, show: bool) -> SpeedTest:
    """With a bar on stderr, where somebody looks at it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    from slipstream.machine.speedtest.run import QUICK, SpeedtestProgress, SpeedtestRun

    columns = (BarColumn(24), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not show or not console.is_terminal) as progress:
        bar = progress.add_task("", total=1.0)

        def tell(what: str, share: float) -> None:
            progress.update(bar, description=what, completed=share)

        return SpeedtestRun(folder, QUICK if quick else SpeedtestProgress(), tell).run()
