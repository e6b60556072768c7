"""The command line. Each command has one module, which parses the options, calls a workflow and prints the result.

The module of a command is imported only when the user names the command, or when `--help` lists all commands.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Parses the command line and runs the command.

    Click only parses. A command that runs the user's script returns a function. This function is called outside of
    click, so an exception of the script reaches the interpreter unchanged.
    """
    import click

    from slipstream.cli.group import slipstream

    try:
        action = slipstream.main(prog_name="slipstream", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    if callable(action):
        action = action()
    if action:
        sys.exit(action)
