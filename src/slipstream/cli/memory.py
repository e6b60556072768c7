"""slipstream memory: observe one step of a script and say what fills its memory."""

from __future__ import annotations

import functools
from pathlib import Path

import click

from slipstream.cli.group import SCRIPT_SETTINGS, Action, instead_of_riding, read_script, script_argument
from slipstream.cli.options import HtmlCommand, html_options, typed_options
from slipstream.cli.output import OutputFormats, give, refuse_two_on_stdout

_SCHEDULE = "slipstream.memory.schedule:MemorySchedule"


@click.command(
    "memory",
    cls=HtmlCommand,
    context_settings=SCRIPT_SETTINGS,
    options_metavar="[OPTIONS]",
    short_help="What fills the memory of a step, and what would fit?",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Stop S seconds after the first step at the latest.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="Write the result as JSON.")
@html_options
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
    html: str | None,
    no_open: bool,
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
    slipstream memory --html train.py                  and a timeline to look at
    slipstream memory --json memory.json train.py

    After a few steps of warm-up, one step is observed as it is. The next steps get batches that are cut to one half and
    to one quarter, which tells what larger batches would need. Then the script is stopped; files that it wrote are
    thrown away. Options of slipstream come before the script; everything after it is the script's own.

    It tells the peak and what made it, the bytes over the step, about what each remedy would free, and the largest
    batch that fits. What is counted is the memory of tensors on the device that holds the model.
    """
    typed = read_script(script, is_module)
    if (action := instead_of_riding("memory", typed)) is not None:
        return action
    refuse_two_on_stdout(json_path, html)
    forms = OutputFormats(json_path=json_path, html=html, no_open=no_open, quiet=quiet, options=typed_options())
    return functools.partial(_observe, typed, seconds, not no_overlay, forms, str(snapshot or ""))


def _observe(script: list[str], seconds: float, use_overlay: bool, forms: OutputFormats, snapshot: str) -> int:
    from slipstream.cli.check import ride
    from slipstream.supervise.check import CheckOptions, RefusalError
    from slipstream.supervise.exit_status import exit_code, remark

    order = CheckOptions(
        script, seconds=seconds, use_overlay=use_overlay, command="memory", schedule=_SCHEDULE, profile=snapshot
    )
    try:
        session = ride(order, forms)
    except RefusalError as error:
        click.echo(f"slipstream: {error}", err=True)
        return 2
    except KeyboardInterrupt:
        return 130
    is_given = give(session, forms, remark(session))
    return exit_code(session) or (0 if is_given and session.footprints else 2)
