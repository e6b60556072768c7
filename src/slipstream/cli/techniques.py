"""slipstream techniques: the catalogue, from the cards."""

from __future__ import annotations

import click

from slipstream.cli.group import Refused


@click.command("techniques", short_help="Everything that tune can try; with an ID, its card.")
@click.argument("ident", required=False, metavar="[ID]")
def command(ident: str | None) -> None:
    """List every technique that `tune` can try; with an ID, show its card in full.

    \b
    slipstream techniques
    slipstream techniques workers
    slipstream tune --only workers,compile train.py
    """
    from rich.console import Console

    from slipstream.report.terminal.techniques import render_card, render_catalogue
    from slipstream.techniques._core.catalogue import catalogue

    known = catalogue()
    if ident is not None and ident not in known:
        raise Refused(f"No technique is called {ident!r}. There are: {', '.join(known)}.")
    console = Console(highlight=False)
    if ident is None:
        render_catalogue(known, console)
    else:
        render_card(ident, known[ident], console)
