"""slipstream run: the script as python runs it, in this process, with nothing but a watcher in its loop."""

from __future__ import annotations

import functools

import click

from slipstream.cli.commands import SCRIPT_SETTINGS, Action, Refused, is_switched_off, read_script, script_argument


@click.command("run", context_settings=SCRIPT_SETTINGS, options_metavar="[OPTIONS]")
@script_argument
def command(is_module: bool, script: tuple[str, ...]) -> Action:
    """Run SCRIPT as python would, watch it, and say in one line at the end how fast it went.

    \b
    slipstream run train.py --epochs 90
    slipstream run -m package.train --epochs 90
    torchrun --nproc-per-node 2 --no-python slipstream run train.py

    Weights, losses, printed lines and the exit code are those of bare python. The line at the end goes to stderr.
    """
    return functools.partial(_run, read_script(script, is_module))


def _run(script: list[str]) -> int | None:
    from slipstream.runner.launch import LaunchError, become_python
    from slipstream.runner.watched import run_watched

    if is_switched_off():
        become_python(script)
    try:
        run_watched(script)
    except LaunchError as error:
        Refused(str(error)).show()
        return 2
    return None
