"""slipstream memory: observe one step of a script and say what fills its memory."""

from __future__ import annotations

import functools
from pathlib import Path

import click
import msgspec

from slipstream.cli.commands import (
    SCRIPT_SETTINGS,
    Action,
    Refused,
    is_switched_off,
    num_ranks,
    read_script,
    script_argument,
)
from slipstream.cli.html_option import HtmlCommand, typed_options

_SCHEDULE = "slipstream.memory.schedule:MemorySchedule"


@click.command("memory", cls=HtmlCommand, context_settings=SCRIPT_SETTINGS, options_metavar="[OPTIONS]")
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Stop S seconds after the first step at the latest.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="Write the result as JSON.")
@click.option(
    "--snapshot",
    type=click.Path(path_type=Path, resolve_path=True),
    metavar="FILE",
    help="On CUDA: keep PyTorch's own memory snapshot of the observed step, for pytorch.org/memory_viz.",
)
@click.option("--quiet", is_flag=True, help="The sentence alone; no live line.")
@click.option("--no-overlay", is_flag=True, help="Let the script write to the real file system.")
@script_argument
def command(
    seconds: float,
    json_path: Path | None,
    snapshot: Path | None,
    quiet: bool,
    no_overlay: bool,
    is_module: bool,
    script: tuple[str, ...],
) -> Action | None:
    """Observe a step of SCRIPT and say what fills its memory: every live byte by kind, by module and by line.

    \b
    slipstream memory train.py --batch-size 32
    slipstream memory -m package.train --config small.yaml
    slipstream memory --json memory.json train.py

    After a few steps of warm-up, one step is observed as it is. The next steps get batches that are cut to one half and
    to one quarter, which tells what larger batches would need. Then the script is stopped; files that it wrote are
    thrown away. Options of slipstream come before the script; everything after it is the script's own.

    It tells the peak and what made it, the bytes over the step, about what each remedy would free, and the largest
    batch that fits. What is counted is the memory of tensors on the device that holds the model.
    """
    typed = read_script(script, is_module)
    if is_switched_off():
        from slipstream.runner.launch import become_python

        return functools.partial(become_python, typed)
    if num_ranks() > 1:
        raise Refused(
            f"memory rides with one process, and this is one of {num_ranks()} ranks (WORLD_SIZE). Start the script"
            " without torchrun, on one device."
        )
    options, kept = typed_options(), str(snapshot or "")
    return functools.partial(_observe, typed, seconds, not no_overlay, options, json_path, kept, quiet)


def _observe(
    script: list[str],
    seconds: float,
    use_overlay: bool,
    options: list[str],
    json_path: Path | None,
    snapshot: str,
    quiet: bool,
) -> int:
    from slipstream.cli.showing import export, noting, show, show_path
    from slipstream.report.live import LiveLine
    from slipstream.runner.outcome import exit_code, remark
    from slipstream.runner.storage import save_session
    from slipstream.runner.supervise import Order, RefusalError, supervise

    order = Order(
        script, seconds=seconds, use_overlay=use_overlay, command="memory", schedule=_SCHEDULE, profile=snapshot
    )
    try:
        session = supervise(order, None if quiet else LiveLine())
    except RefusalError as error:
        click.echo(f"slipstream: {error}", err=True)
        return 2
    except KeyboardInterrupt:
        return 130
    session = msgspec.structs.replace(session, options=options)
    sentences = [remark(session)]
    with noting(sentences):
        show(session, quiet=quiet)
    with noting(sentences):
        path = save_session(session)
        if not quiet:
            show_path(path)
    if json_path is not None:
        with noting(sentences):
            export(session, json_path)
    for sentence in filter(None, sentences):
        click.echo(f"slipstream: {sentence}", err=True)
    return exit_code(session) or (2 if any(sentences) or not session.footprints else 0)
