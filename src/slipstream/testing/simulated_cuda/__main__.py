"""Runs Python with the simulated device: `python -m slipstream.testing.simulated_cuda [options] train.py`."""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from typing import Any

import click

from slipstream.testing.simulated_cuda.build import BuildError, build
from slipstream.testing.simulated_cuda.settings import Settings, environment


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--skip-without-compiler", is_flag=True, help="Exit with status 0 if there is no C++ compiler.")
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED)
def main(arguments: tuple[str, ...], skip_without_compiler: bool, **settings: Any) -> None:
    """Run Python with ARGUMENTS. In this Python torch has simulated CUDA devices."""
    try:
        library = build()
    except BuildError as fault:
        click.echo(f"The simulated CUDA device is not available: {fault}.", err=True)
        sys.exit(0 if skip_without_compiler else 2)
    os.environ.update(environment(library, Settings(**settings)))
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *arguments])


for _field in fields(Settings):
    _name = "--" + _field.name.replace("_", "-")
    main.params.append(click.Option([_name], default=_field.default, type=type(_field.default), show_default=True))

if __name__ == "__main__":
    main()
