"""slipstream run: run the script in this process, as python would, with the recipe of the script applied."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from slipstream.cli.group import (
    SCRIPT_SETTINGS,
    Action,
    Refused,
    is_switched_off,
    num_ranks,
    read_script,
    require_training,
    script_argument,
)

if TYPE_CHECKING:
    from slipstream.recipe.file import RecipeFile
    from slipstream.records import Recipe, Remains

RECIPE: Final = "slipstream.toml"
SURVIVAL: Final = "survive_oom"  # the technique that --survive-oom adds to any recipe
# This variable is set if this process has started python again to set the recipe's environment variables.
_PREPARED: Final = "SLIPSTREAM_PREPARED"


@click.command(
    "run",
    context_settings=SCRIPT_SETTINGS,
    options_metavar="[OPTIONS]",
    short_help="Run the training with the recipe that tune wrote.",
)
@click.option(
    "--recipe",
    "recipe_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The recipe. Default: slipstream.toml in this directory or next to the script, if it is for this script.",
)
@click.option("--no-recipe", is_flag=True, help="Do not apply a recipe, even if there is one.")
@click.option("--tune", "tune_first", is_flag=True, help="Run slipstream tune first, then train with the new recipe.")
@click.option(
    "--survive-oom", "survives", is_flag=True, help="If a batch runs out of memory, compute it again in pieces."
)
@script_argument
def command(
    recipe_path: Path | None,
    no_recipe: bool,
    tune_first: bool,
    survives: bool,
    is_module: bool,
    script: tuple[str, ...],
) -> Action:
    """Run SCRIPT as python would, with the recipe that `slipstream tune` wrote, and report its speed at the end.

    This is the command for the real training: use it in place of python. It does not change your source.

    \b
    slipstream tune train.py --epochs 90             once: writes slipstream.toml
    slipstream run train.py --epochs 90              trains with that recipe
    slipstream run --tune train.py --epochs 90       does both
    slipstream run --no-recipe -m package.train      trains without a recipe
    slipstream run --survive-oom train.py            computes a batch in pieces if it does not fit

    The recipe is applied from the first step. Without a recipe, the weights, losses, printed lines and exit code are
    the same as with plain python. Messages of slipstream go to stderr.
    """
    if no_recipe and (recipe_path is not None or tune_first):
        raise click.UsageError("--no-recipe cannot be combined with --recipe or --tune: leave out one or the other")
    typed = read_script(script, is_module)
    if is_switched_off():
        from slipstream.launch.as_main import become_python

        return functools.partial(become_python, typed)
    if sys.platform != "linux":
        from slipstream.launch.as_main import become_python

        click.echo("slipstream: recipes are applied on Linux only. The script runs as plain Python.", err=True)
        return functools.partial(become_python, typed)
    require_training("slipstream run")
    if tune_first and num_ranks() > 1:
        raise Refused(
            f"--tune works with one process only, and this is one of {num_ranks()} ranks. Tune without torchrun."
        )
    if tune_first:
        return functools.partial(_tune_and_run, typed, recipe_path, survives)
    return functools.partial(_run, typed, recipe_path, no_recipe, survives)


def _run(script: list[str], recipe_path: Path | None, no_recipe: bool, survives: bool) -> int | None:
    try:
        file = None if no_recipe else _find(script, recipe_path)
        recipe = _recipe_of(file, survives)
    except Refused as refusal:
        refusal.show()
        return refusal.exit_code
    if recipe.choices:
        _prepare_environment(recipe)
    from slipstream.launch.as_main import LaunchError
    from slipstream.trial.run_mode import run_watched

    try:
        needs_no_hint = file is not None or no_recipe or num_ranks() > 1 or _beside(script)
        hint, explain = "" if needs_no_hint else _hint(script), functools.partial(_explain, script, survives)
        if not recipe.choices:
            run_watched(script, hint=hint, on_shortage=explain)
            return None
        from slipstream.techniques._core.apply_recipe import apply_recipe

        base_step_ms = file.base_step_ms if file is not None else None
        run_watched(script, recipe, apply_recipe, base_step_ms, hint, explain)
    except LaunchError as error:
        Refused(str(error)).show()
        return 2
    return None


def _recipe_of(file: RecipeFile | None, survives: bool) -> Recipe:
    from slipstream.records import Choice, Recipe

    recipe = file.recipe if file is not None else Recipe()
    if not survives or recipe.setting_of(SURVIVAL) is not None:
        return recipe
    from slipstream.recipe.conflicts import conflict_with, find_conflicts
    from slipstream.techniques._core.catalogue import technique

    cards = {name: technique(name).CARD for name in (SURVIVAL, *(choice.technique for choice in recipe.choices))}
    if conflict := conflict_with(SURVIVAL, recipe, find_conflicts(cards)):
        raise Refused(
            f"--survive-oom cannot be combined with this recipe: {conflict}. Leave out the option, or add --no-recipe."
        )
    return recipe.plus(Choice(SURVIVAL))


def _explain(script: list[str], survives: bool, error: BaseException) -> Iterator[str]:
    """Yields lines that say what filled the memory, and then the command that would help.

    The command is given even if the contents of the memory could not be read.
    """
    from slipstream.records import Remains

    remains = Remains({})
    with contextlib.suppress(Exception):  # what cannot be read is left out
        from slipstream.memory.oom_report import read_remains
        from slipstream.report.text.memory import remains_lines

        remains = read_remains(error)
        yield from remains_lines(remains, os.getcwd())
    yield _remedy(script, survives, remains)


def _remedy(script: list[str], survives: bool, remains: Remains) -> str:
    typed = shlex.join(script)
    size = f"{remains.held_bytes // 2**20}MiB" if remains.held_bytes else "SIZE"
    fitting = f"slipstream tune --memory-limit {size} {typed} finds what makes this batch fit"
    if survives:
        return (
            "out of memory, and --survive-oom could not help: memory ran out outside the model's forward and backward "
            f"pass, one sample alone is too large, or the model cannot be computed in pieces; {fitting}"
        )
    if remains.has_batch_norm:  # batch norm mixes the samples of a batch, so pieces give another result
        return f"out of memory: {fitting}; slipstream tune --fit {typed} finds the largest batch that fits"
    return (
        f"out of memory: slipstream run --survive-oom {typed} computes a batch in pieces if it does not fit; {fitting}"
    )


def _hint(script: list[str]) -> str:
    """Returns a hint that is printed at the end of the run, because slipstream prints nothing between the script's own
    lines."""
    return f"; no {RECIPE} here: slipstream tune {shlex.join(_named(script))} makes one"


def _name(script: list[str]) -> str:
    return " ".join(_named(script))


def _named(script: list[str]) -> list[str]:
    return script[:2] if script[:1] == ["-m"] else script[:1]


def _find(script: list[str], given: Path | None) -> RecipeFile | None:
    """Returns the recipe of this script and tells the user which recipe is used. Returns None if there is no recipe
    that can be used."""
    paths = [given] if given is not None else _beside(script)
    if not paths:
        return None
    if num_ranks() > 1:
        _say(f"{paths[0]} was measured with one process, so it is not applied to {num_ranks()} ranks.")
        return None
    for path in paths:
        file = _read(path)
        if given is not None or _is_of(file, script):
            break
    else:
        _say(f"{path} was measured on {_name(file.script)}, not on {_name(script)}, so it is not applied.")
        return None
    if _PREPARED not in os.environ:  # if it is set, this process printed the lines below before it started python again
        from slipstream.recipe.file import differences

        _say(f"{path}: {file.recipe}")
        if changed := differences(file, script):
            _say(f"{' '.join(changed)} The recipe may no longer help; slipstream tune makes a new one.")
    return file


def _read(path: Path) -> RecipeFile:
    from slipstream.recipe.file import read_recipe

    try:
        return read_recipe(path)
    except ValueError as error:
        raise Refused(f"{error}.") from None


def _is_of(file: RecipeFile, script: list[str]) -> bool:
    """Whether the recipe is for this script. A folder may contain the recipe of another script.

    A recipe that names no script is for all scripts.
    """
    return not file.script or Path(_name(file.script)).name == Path(_name(script)).name


def _beside(script: list[str]) -> list[Path]:
    """Returns the existing recipe files that `run` considers if the user names none. The recipe in this directory comes
    first, and the recipe in the script's folder comes second."""
    folders = [Path(), *([] if script[0] == "-m" else [Path(script[0]).parent])]
    return [folder / RECIPE for folder in dict.fromkeys(folders) if (folder / RECIPE).is_file()]


def run_command(script: list[str], recipe_path: Path) -> str:
    """Returns the command that trains with this recipe. It names the recipe if `run` would not find it by itself."""
    is_found = any(recipe_path.absolute() == path.absolute() for path in _beside(script))
    option = [] if is_found else ["--recipe", str(recipe_path)]
    return shlex.join(["slipstream", "run", *option, *script])


def _prepare_environment(recipe: Recipe) -> None:
    """Replaces this program by a new python in the same process, at most once, if the recipe needs other values of
    environment variables. Setting them now would be too late, because libraries read them when they are loaded."""
    if os.environ.pop(_PREPARED, None):
        return
    from slipstream.techniques._core.catalogue import environment_of

    wanted: dict[str, str] = {}
    for choice in recipe.choices:
        wanted |= environment_of(choice.technique, choice.setting)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        _restart(sys.orig_argv[1:], {**wanted, _PREPARED: "1"})


def _tune_and_run(script: list[str], recipe_path: Path | None, survives: bool = False) -> int | None:
    """Tunes, and then starts python again in the same process to train, because tuning imports modules that the script
    must not find loaded. Without a new recipe, the training runs without a recipe."""
    from slipstream.cli.tune import Request, tune_until_interrupted

    path = recipe_path or Path(RECIPE)
    before = _stamp(path)
    if code := tune_until_interrupted(Request(script, recipe_path=path)):
        return code
    how = ["--recipe", str(path)] if path.is_file() and _stamp(path) != before else ["--no-recipe"]
    how += ["--survive-oom"] if survives else []
    module, rest = (["-m"], script[1:]) if script[0] == "-m" else ([], script)
    from slipstream.launch.as_main import interpreter_flags

    _restart([*interpreter_flags(), "-m", "slipstream", "run", *how, *module, *rest], {})
    return None


def _stamp(path: Path) -> tuple[int, int] | None:
    """Identifies the version of the file, so that a new recipe can be distinguished from an older one."""
    return (path.stat().st_mtime_ns, path.stat().st_ino) if path.is_file() else None


def _restart(arguments: list[str], variables: dict[str, str]) -> None:
    """Replaces the program of this process by a new python. The process id stays the same."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *arguments], {**os.environ, **variables})


def _say(sentence: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        click.echo(f"slipstream: {sentence}", err=True)
