"""slipstream memory: observe one step of a script and report what fills its memory."""

from __future__ import annotations

import functools
from pathlib import Path

import click

from slipstream.cli.group import (
    SCRIPT_SETTINGS,
    Action,
    plain_python_instead,
    read_script,
    refuse_shortage,
    script_argument,
)
from slipstream.cli.options import HtmlCommand, html_options, typed_options
from slipstream.cli.output import OutputFormats, give, refuse_two_on_stdout

_SCHEDULE = "slipstream.memory.schedule:MemorySchedule"


@click.command(
    "memory",
    cls=HtmlCommand,
    context_settings=SCRIPT_SETTINGS,
    options_metavar="[OPTIONS]",
    short_help="Show what fills the memory, and what would fit.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Stop at the latest S seconds after the first step.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="Write the result as JSON.")
@html_options
@click.option(
    "--snapshot",
    type=click.Path(path_type=Path, resolve_path=True),
    metavar="FILE",
    help="On CUDA: save PyTorch's own memory snapshot of the observed step, for pytorch.org/memory_viz.",
)
@click.option("--quiet", is_flag=True, help="Print only the summary; show no progress.")
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
    """Observe one step of SCRIPT and report what fills its memory, by kind, by module and by line.

    The report shows the peak and what causes it, the live bytes during the step, an estimate of what each remedy would
    free, and the largest batch that fits. Use it when a script runs out of memory, or before you choose a batch size.

    \b
    slipstream memory train.py --batch-size 32
    slipstream memory -m package.train --config small.yaml
    slipstream memory --html train.py                  with a timeline for the browser
    slipstream memory --json memory.json train.py

    After a few warm-up steps, slipstream observes one step as it is. It cuts the batches of the next steps to one half
    and to one quarter, to estimate what larger batches would need. Then it stops the script and discards the files
    that the script wrote. Only tensors on the device that holds the model are counted.

    Options of slipstream come before the script; everything after the script's name is passed to the script.
    """
    typed = read_script(script, is_module)
    if (action := plain_python_instead("memory", typed)) is not None:
        return action
    refuse_two_on_stdout(json_path, html)
    forms = OutputFormats(json_path=json_path, html=html, no_open=no_open, quiet=quiet, options=typed_options())
    return functools.partial(_observe, typed, seconds, not no_overlay, forms, str(snapshot or ""))


def _observe(script: list[str], seconds: float, use_overlay: bool, forms: OutputFormats, snapshot: str) -> int:
    from slipstream.cli.check import run_check
    from slipstream.supervise.check import CheckOptions
    from slipstream.supervise.exit_status import exit_code, remark
    from slipstream.supervise.trial_process import RefusalError

    order = CheckOptions(
        script, seconds=seconds, use_overlay=use_overlay, command="memory", schedule=_SCHEDULE, profile=snapshot
    )
    try:
        session = run_check(order, forms)
    except RefusalError as error:
        click.echo(f"slipstream: {error}", err=True)
        return 2
    except OSError as error:
        return refuse_shortage(error)
    except KeyboardInterrupt:
        return 130
    is_given = give(session, forms, remark(session))
    return exit_code(session) or (0 if is_given and session.footprints else 2)
