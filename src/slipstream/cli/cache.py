"""slipstream cache: show the decoded images that are stored on disk, and delete them."""

from __future__ import annotations

import click

from slipstream.cli.group import Refused


@click.command("cache", short_help="Show or clear the decoded images on disk.")
@click.argument("action", required=False, type=click.Choice(["clear"]), metavar="[clear]")
@click.option("--yes", is_flag=True, help="With clear: delete without asking first.")
def command(action: str | None, yes: bool) -> None:
    """Show what the technique decode_cache stores on disk, or delete it.

    The table lists the folder, the number of images, their size, and the folders that the images come from. Use this
    command to see how much disk space the cache takes, and to free it.

    \b
    slipstream cache               show what is stored
    slipstream cache clear         delete it, after a question
    slipstream cache clear --yes   delete it without a question

    Clearing is safe at any time, even while a training runs: a missing image is decoded again. slipstream never
    deletes cached images by itself. When an image file changes, its old pixels stay until you clear the cache.

    To store the cache in another folder, set SLIPSTREAM_CACHE in the environment, as in
    SLIPSTREAM_CACHE=/scratch/cache slipstream run train.py
    """
    from rich.console import Console

    from slipstream.data.images.cache_folder import clear, survey
    from slipstream.numbers import in_bytes, plural
    from slipstream.report.terminal.cache import render_cache

    if yes and action is None:
        raise click.UsageError("--yes is only for clear, as in: slipstream cache clear --yes")
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
