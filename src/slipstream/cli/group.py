"""The list of commands, and what the commands that run a script share."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any, Final

import click

from slipstream.version import VERSION

COMMANDS: Final = (
    *("check", "tune", "run", "memory", "patch", "report", "history", "compare"),
    *("machine", "techniques", "cache", "selftest"),
)

# Options of slipstream stand before the script. All words after the script's name belong to the script.
SCRIPT_SETTINGS: Final = {"allow_interspersed_args": False}

Action = Callable[[], int | None]


class LazyGroup(click.Group):
    """Imports a command only when it is needed, because `run` must start quickly."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"slipstream.cli.{cmd_name}").command
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="slipstream", message="%(prog)s %(version)s")
def slipstream() -> None:
    """Makes PyTorch training faster, and proves it. Put one word before the command you already run.

    \b
    Where does the time go?        slipstream check train.py --epochs 90
    What makes it faster?          slipstream tune train.py --epochs 90
    Train with what was kept:      slipstream run train.py --epochs 90
    What fills the memory?         slipstream memory train.py --epochs 90
    Write it into the source:      slipstream patch train.py
    The last report again:         slipstream report
    What was measured so far:      slipstream history
    Is it slower than before?      slipstream compare main HEAD
    How fast is this computer?     slipstream machine
    What can tune try?             slipstream techniques
    Which images are cached?       slipstream cache
    Does it work on my device?     slipstream selftest --device cuda

    A module goes like a script:   slipstream tune -m package.train --epochs 90

    SLIPSTREAM_DISABLE=1 in the environment switches everything off: the script then runs as with bare python.
    """


def script_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the option -m and the argument `script`. `script` contains the script or module and its own arguments."""
    function = click.argument("script", nargs=-1, required=False, type=click.UNPROCESSED)(function)
    return click.option("-m", "is_module", is_flag=True, help="The script is a module, as in python -m.")(function)


def read_script(script: tuple[str, ...], is_module: bool) -> list[str]:
    """Returns the words that the user would give to python for this script. Raises a usage error if the user named no
    script, and Refused if the script cannot be run."""
    from slipstream.launch.target import refusal

    if not script:
        raise click.UsageError("Which script? Give the one that you would give to python, as in: train.py --epochs 90")
    typed = ["-m", *script] if is_module else list(script)
    if sentence := refusal(typed):
        raise Refused(sentence)
    return typed


class Refused(click.ClickException):
    """An error of the user: a sentence without a traceback, and exit code 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        # The message may quote a file from somebody else, and this text must not control the terminal.
        message = "".join(char if char.isprintable() or char == "\n" else "?" for char in self.format_message())
        click.echo(f"slipstream: {message}", file=file, err=file is None)


def refuse_shortage(error: OSError) -> int:
    """Prints which resource the system has run out of, and returns the exit code. Other errors are raised again."""
    from slipstream.sandbox.shortages import shortage

    if sentence := shortage(error):
        Refused(f"{sentence}.").show()
        return Refused.exit_code
    raise error


def require_training(what: str) -> None:
    """Refuses a command that runs a training if the system is not Linux or torch is not installed. `what` is the
    command that the message names."""
    if sys.platform != "linux":
        raise Refused(
            f"{what} runs on Linux only: it stops and resumes whole process trees and reads /proc. On other systems,"
            " report, history, compare, patch and techniques work on saved sessions."
        )
    if importlib.util.find_spec("torch") is None:
        raise Refused(
            f"torch is not installed in this Python: {sys.executable}. {what} needs it: pip install torch. Without it,"
            " report, history, compare, patch and techniques work on saved sessions."
        )


def plain_python_instead(command: str, script: list[str]) -> Action | None:
    """Returns an action that runs the script as plain Python if slipstream is switched off, else None. Refuses if this
    process is one of several ranks, or if no training can be observed on this machine."""
    if is_switched_off():
        from slipstream.launch.as_main import become_python

        return functools.partial(become_python, script)
    if num_ranks() > 1:
        raise Refused(
            f"{command} observes one process, and this is one of {num_ranks()} ranks (WORLD_SIZE). Start the script"
            " without torchrun, on one device. slipstream run works under torchrun."
        )
    require_training(f"slipstream {command}")
    return None


def is_switched_off() -> bool:
    return os.environ.get("SLIPSTREAM_DISABLE", "") not in ("", "0")


def num_ranks() -> int:
    """Returns the number of ranks, which torchrun stores in WORLD_SIZE. Without torchrun the number is 1."""
    size = os.environ.get("WORLD_SIZE", "1")
    return int(size) if size.isdigit() else 1
