"""slipstream cache: the decoded images on disk, shown and cleared."""

from __future__ import annotations

import click

from slipstream.cli.group import Refused


@click.command("cache", short_help="What decode_cache keeps on disk; clear it.")
@click.argument("action", required=False, type=click.Choice(["clear"]), metavar="[clear]")
@click.option("--yes", is_flag=True, help="Clear without asking.")
def command(action: str | None, yes: bool) -> None:
    """Show what the technique decode_cache keeps on disk: where, how many images, how many bytes, from which folders.

    \b
    slipstream cache
    slipstream cache clear
    slipstream cache clear --yes
    SLIPSTREAM_CACHE=/scratch/cache slipstream run train.py      keeps them elsewhere

    Clearing is safe at any time, also while a training runs: an image that is gone is decoded again. Nothing is ever
    dropped by itself. Images that have changed since leave their old pixels behind until the cache is cleared.
    """
    from rich.console import Console

    from slipstream.data.images.cache_folder import clear, survey
    from slipstream.report.terminal.cache import render_cache
    from slipstream.report.text.numbers import in_bytes, plural

    if yes and action is None:
        raise click.UsageError("--yes belongs to clear: slipstream cache clear --yes")
    try:
        holdings = survey()
    except OSError as error:
        raise Refused(f"{error.filename} cannot be read: {error.strerror}.") from None
    render_cache(holdings, Console(highlight=False))
    if action is None or not (holdings.num_images or holdings.num_unfinished):
        return
    if not yes and not click.confirm(f"Delete {plural(holdings.num_images, 'image')}?", default=False):
        click.echo("Nothing was deleted.")
        return
    try:
        num_deleted = clear()
    except OSError as error:
        raise Refused(f"{error.filename or holdings.folder} cannot be deleted: {error.strerror}.") from None
    click.echo(f"Deleted {plural(num_deleted, 'image')}, {in_bytes(holdings.num_bytes)}.")
