"""slipstream machine: measure the speed of this computer and point out what is unusually slow."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slipstream.cli.group import Action, Refused

if TYPE_CHECKING:
    from slipstream.records import SpeedTest


@click.command("machine", short_help="Test the speed of this computer.")
@click.option("--quick", is_flag=True, help="Measure less precisely, in a third of the time.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path(),
    metavar="DIR",
    help="Test the disk that holds DIR, for example the folder of your data. Default: the current directory.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON to standard output, and nothing else.")
@click.option("--last", is_flag=True, help="Measure nothing; show the last test of this directory again.")
def command(quick: bool, folder: Path, as_json: bool, last: bool) -> Action:
    """Test the speed of this computer in about half a minute.

    The test measures the disk, image decoding, memory, matrix multiplication in every precision, copies to the device,
    process starts, and the transfer of batches from a DataLoader worker. It compares each result with the usual range.
    Use it to find out whether the machine itself is the reason for a slow training.

    \b
    slipstream machine
    slipstream machine --folder /data/imagenet         test the disk of this folder
    slipstream machine --quick --json
    slipstream machine --last                          show the last result again

    Close other programs first: everything that runs at the same time makes the results worse.
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
    except StorageError as error:  # the result is shown even if it cannot be saved
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
    """Runs the speed test, with a progress bar on stderr if stderr is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    from slipstream.machine.speedtest.run import QUICK, SpeedtestOptions, SpeedtestRun

    columns = (BarColumn(24), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not show or not console.is_terminal) as progress:
        bar = progress.add_task("", total=1.0)

        def tell(what: str, share: float) -> None:
            progress.update(bar, description=what, completed=share)

        return SpeedtestRun(folder, QUICK if quick else SpeedtestOptions(), tell).run()
