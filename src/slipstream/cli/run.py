"""slipstream run: the script as python runs it, in this process, with its recipe and nothing else in its loop."""

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
    require_torch,
    script_argument,
)

if TYPE_CHECKING:
    from slipstream.recipe.file import RecipeFile
    from slipstream.records import Recipe, Remains

RECIPE: Final = "slipstream.toml"
SURVIVAL: Final = "survive_oom"  # the technique that --survive-oom adds to any recipe
_PREPARED: Final = "SLIPSTREAM_PREPARED"  # this process was started anew for the recipe's environment variables


@click.command(
    "run",
    context_settings=SCRIPT_SETTINGS,
    options_metavar="[OPTIONS]",
    short_help="Train as python would, with what tune kept.",
)
@click.option(
    "--recipe",
    "recipe_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The recipe; otherwise this script's slipstream.toml, here or beside it.",
)
@click.option("--no-recipe", is_flag=True, help="Train as it is, even if there is a recipe.")
@click.option("--tune", "tune_first", is_flag=True, help="Make the recipe first: slipstream tune, then train with it.")
@click.option("--survive-oom", "survives", is_flag=True, help="Out of memory? That batch again, in smaller pieces.")
@script_argument
def command(
    recipe_path: Path | None,
    no_recipe: bool,
    tune_first: bool,
    survives: bool,
    is_module: bool,
    script: tuple[str, ...],
) -> Action:
    """Run SCRIPT as python would, with the recipe that `slipstream tune` wrote, and say at the end how fast it went.

    \b
    slipstream tune train.py --epochs 90             makes slipstream.toml, once
    slipstream run train.py --epochs 90              trains with it, source untouched
    slipstream run --tune train.py --epochs 90       both
    slipstream run --no-recipe -m package.train      as bare python, and one line at the end
    slipstream run --survive-oom train.py            a batch that does not fit is computed in pieces

    The recipe is applied from the first step. Without one, weights, losses, printed lines and the exit code are those
    of bare python. What slipstream says itself goes to stderr.
    """
    if no_recipe and (recipe_path is not None or tune_first):
        raise click.UsageError("--no-recipe stands alone: leave out --recipe and --tune, or leave out --no-recipe")
    typed = read_script(script, is_module)
    if is_switched_off():
        from slipstream.launch.as_main import become_python

        return functools.partial(become_python, typed)
    require_torch("slipstream run")
    if tune_first and num_ranks() > 1:
        raise Refused(f"--tune races with one process, and this is one of {num_ranks()} ranks. Tune without torchrun.")
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
        is_said = file is not None or no_recipe or num_ranks() > 1 or _beside(script)
        hint, explain = "" if is_said else _hint(script), functools.partial(_explain, script, survives)
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
        raise Refused(f"--survive-oom does not go with this recipe: {conflict}. --no-recipe trains without it.")
    return recipe.plus(Choice(SURVIVAL))


def _explain(script: list[str], survives: bool, error: BaseException) -> Iterator[str]:
    """What filled the memory, and the command that would help; one of them is said whatever becomes of the other."""
    from slipstream.records import Remains

    remains = Remains({})
    with contextlib.suppress(Exception):  # what cannot be read is not told
        from slipstream.memory.oom_report import read_remains
        from slipstream.report.text.oom import remains_lines

        remains = read_remains(error)
        yield from remains_lines(remains, os.getcwd())
    yield _remedy(script, survives, remains)


def _remedy(script: list[str], survives: bool, remains: Remains) -> str:
    typed = shlex.join(script)
    size = f"{remains.held_bytes // 2**20}MiB" if remains.held_bytes else "SIZE"
    fitting = f"slipstream tune --memory-limit {size} {typed} finds what makes this batch fit"
    if survives:
        return (
            "out of memory, and not survived: it ran out outside the model's own forward and backward pass, one sample "
            f"alone is too large, or the model cannot be cut into pieces; {fitting}"
        )
    if remains.has_batch_norm:  # in which samples touch each other: pieces of the batch would compute something else
        return f"out of memory: {fitting}; slipstream tune --fit {typed} finds the largest batch that does"
    return (
        f"out of memory: slipstream run --survive-oom {typed} computes a batch that does not fit in pieces; {fitting}"
    )


def _hint(script: list[str]) -> str:
    """Said at the very end: nothing of ours comes between the script's own lines."""
    return f"; no {RECIPE} here: slipstream tune {shlex.join(_named(script))} makes one"


def _name(script: list[str]) -> str:
    return " ".join(_named(script))


def _named(script: list[str]) -> list[str]:
    return script[:2] if script[:1] == ["-m"] else script[:1]


def _find(script: list[str], given: Path | None) -> RecipeFile | None:
    """The recipe of this script, if there is one that can be used; what is to be said about it is said here."""
    paths = [given] if given is not None else _beside(script)
    if not paths:
        return None
    if num_ranks() > 1:
        _say(f"{paths[0]} was measured with one process and is not applied to {num_ranks()} ranks: training as it is.")
        return None
    for path in paths:
        file = _read(path)
        if given is not None or _is_of(file, script):
            break
    else:
        _say(f"{path} was measured on {_name(file.script)}, not on {_name(script)}: training as it is.")
        return None
    if _PREPARED not in os.environ:  # else it was said before
        from slipstream.recipe.file import differences

        _say(f"{path}: {file.recipe}")
        if changed := differences(file, script):
            _say(f"{' '.join(changed)} If that matters here, slipstream tune makes a new one.")
    return file


def _read(path: Path) -> RecipeFile:
    from slipstream.recipe.file import read_recipe

    try:
        return read_recipe(path)
    except ValueError as error:
        raise Refused(f"{error}.") from None


def _is_of(file: RecipeFile, script: list[str]) -> bool:
    """Another script's recipe lies in the same folder often enough; one that names no script is for all of them."""
    return not file.script or Path(_name(file.script)).name == Path(_name(script)).name


def _beside(script: list[str]) -> list[Path]:
    """The recipes that are found without being named: here first, then beside the script."""
    folders = [Path(), *([] if script[0] == "-m" else [Path(script[0]).parent])]
    return [folder / RECIPE for folder in dict.fromkeys(folders) if (folder / RECIPE).is_file()]


def _prepare_environment(recipe: Recipe) -> None:
    """Variables that libraries read when the process starts: it is started anew with them, once."""
    if os.environ.pop(_PREPARED, None):
        return
    from slipstream.techniques._core.catalogue import environment_of

    wanted: dict[str, str] = {}
    for choice in recipe.choices:
        wanted |= environment_of(choice.technique, choice.setting)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        _start_anew(sys.orig_argv[1:], {**wanted, _PREPARED: "1"})


def _tune_and_run(script: list[str], recipe_path: Path | None, survives: bool = False) -> int | None:
    """Tuning loads much into its process that the script must not find there: training gets a fresh one."""
    from slipstream.cli.tune import Request, tune_until_interrupted

    path = recipe_path or Path(RECIPE)
    before = _stamp(path)
    if code := tune_until_interrupted(Request(script, recipe_path=path)):
        return code
    how = ["--recipe", str(path)] if path.is_file() and _stamp(path) != before else ["--no-recipe"]
    how += ["--survive-oom"] if survives else []
    module, rest = (["-m"], script[1:]) if script[0] == "-m" else ([], script)
    from slipstream.launch.as_main import interpreter_flags

    _start_anew([*interpreter_flags(), "-m", "slipstream", "run", *how, *module, *rest], {})
    return None


def _stamp(path: Path) -> tuple[int, int] | None:
    """Tells a recipe that was written from one that was there before."""
    return (path.stat().st_mtime_ns, path.stat().st_ino) if path.is_file() else None


def _start_anew(arguments: list[str], variables: dict[str, str]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *arguments], {**os.environ, **variables})


def _say(sentence: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        click.echo(f"slipstream: {sentence}", err=True)
