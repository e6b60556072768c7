"""The command line: one file per command, each parses, calls and prints. Commands are imported when they are used."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point. Click only parses: what a command then does runs outside of it, because a script's exceptions must
    reach the interpreter as they are."""
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
