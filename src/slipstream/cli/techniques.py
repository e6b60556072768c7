"""slipstream techniques: list the techniques, or describe one of them."""

from __future__ import annotations

import click

from slipstream.cli.group import Refused


@click.command("techniques", short_help="List what tune can try, or describe one technique.")
@click.argument("ident", required=False, metavar="[ID]")
def command(ident: str | None) -> None:
    """List every technique that `slipstream tune` can try. With an ID, describe that technique in full.

    Use it to look up the names in a recipe, and the names for --only and --without of tune.

    \b
    slipstream techniques
    slipstream techniques workers
    """
    from rich.console import Console

    from slipstream.report.terminal.techniques import render_card, render_catalogue
    from slipstream.techniques._core.catalogue import catalogue

    known = catalogue()
    if ident is not None and ident not in known:
        raise Refused(f"There is no technique {ident!r}. The techniques are: {', '.join(known)}.")
    console = Console(highlight=False)
    if ident is None:
        render_catalogue(known, console)
    else:
        render_card(ident, known[ident], console)
