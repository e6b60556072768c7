"""slipstream patch: turn the recipe into a diff of the user's own source."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slipstream.cli.group import Action, Refused, require_training
from slipstream.report.text.numerics import describe_numerics
from slipstream.report.text.verdicts import reason_of
from slipstream.supervise.signals import EndedBySignal

if TYPE_CHECKING:
    from slipstream.recipe.source_edits import Written
    from slipstream.records import Recipe, Session, Speed, Verdict
    from slipstream.rewrite.make_patch import LeftByHand, Patch

RECIPE = "slipstream.toml"


@click.command(
    "patch",
    short_help="Write what tune kept into your own source.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="")
@click.option("-m", "is_module", is_flag=True, help="The script is a module, as in python -m.")
@click.option(
    "--session",
    "session_name",
    metavar="FILE",
    default="latest",
    show_default=True,
    help="The session to take the line numbers from: the last of tune, or else of check.",
)
@click.option(
    "--recipe",
    "recipe_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The recipe. Default: this script's slipstream.toml, or else the recipe in the session.",
)
@click.option(
    "--import",
    "may_import",
    is_flag=True,
    help="Also write slipstream.DataLoader, for what torch's DataLoader cannot do. The script then imports slipstream.",
)
@click.option("--write", "is_written", is_flag=True, help="Change the files instead of printing the diff.")
@click.option(
    "--force", is_flag=True, help="With --write: write even over uncommitted changes, or if the patch is not proved."
)
@click.option(
    "--prove",
    "is_proved",
    is_flag=True,
    help="First race the patched source, without slipstream, against the original.",
)
@click.option(
    "--budget", default="2m", show_default=True, metavar="TIME", help="The time for --prove, such as 90s, 5m or 1h."
)
def command(
    script: str,
    arguments: tuple[str, ...],
    is_module: bool,
    session_name: str,
    recipe_path: Path | None,
    may_import: bool,
    is_written: bool,
    force: bool,
    is_proved: bool,
    budget: str,
) -> Action | None:
    """Write the recipe that `slipstream tune` kept into the source of SCRIPT.

    Without --write, the command prints a diff and changes nothing. Use it when you want the speed-up in your own code,
    so that the training no longer needs slipstream. Run slipstream tune first.

    \b
    slipstream patch train.py                        print the diff
    slipstream patch train.py --write                change the files
    slipstream patch train.py | git apply            the same, with git
    slipstream patch train.py --prove                measure the patched source first
    slipstream patch train.py --import               also write slipstream.DataLoader
    slipstream patch --session nightly.msgpack -m package.train

    An edit is made where the call is, also in imported modules, but only inside the project. Formatting and comments
    stay as they are. Edits that cannot be made safely are listed on stderr, with the reason and the line to write by
    hand. A second run changes nothing more.

    With --prove, the result of the race stands above the diff. Only --prove needs torch.
    """
    typed = ["-m", script] if is_module else [script]
    if arguments:  # the user has typed the command of tune with `patch` in place of `tune`
        _say(f"ignored: {' '.join(arguments)} (patch does not run the script, so it needs no arguments).")
    path = _source_file(typed)
    session = _session(session_name, path)
    recipe = _recipe(recipe_path, typed, path, session)
    written = _written(session, recipe, may_import)
    if written.lost.choices:
        _say_lost(written, recipe, session, typed, may_import)
    patch = _make(session, written, path, may_import)
    _say_left(patch.left, typed, recipe_path)
    if not patch.files:
        _say(f"nothing to change{_why_nothing(patch, written, recipe, session)}.")
        return None
    if is_proved:
        return functools.partial(_prove, patch, session, written.speed, path, _seconds(budget), is_written, force)
    _give(patch, path, is_written, force)
    return None


def _written(session: Session, recipe: Recipe, may_import: bool) -> Written:
    from slipstream.recipe.source_edits import written_of

    return written_of(session, recipe, may_import)


def _say_lost(written: Written, recipe: Recipe, session: Session, typed: list[str], may_import: bool) -> None:
    """Prints which techniques of the recipe cannot be written into the source, what the patch contains instead, and
    which option or which other command may help."""
    from slipstream.recipe.source_edits import can_import

    lost = "it" if len(written.lost.choices) == len(recipe.choices) == 1 else str(written.lost)
    words = [f"the recipe: {_measured(recipe, written.total)}; no edit of the source does {lost} (slipstream run does)"]
    if written.recipe.choices:
        unknown = "" if written.speed is not None else ", not measured alone (--prove measures it)"
        words.append(f"written: {_measured(written.recipe, written.speed)}{unknown}")
    _say(f"{'; '.join(words)}.")
    if not may_import and (importable := can_import(session, written.lost)).choices:
        _say(f"with slipstream.DataLoader in the source, {importable} can be written: add --import.")
    if not written.recipe.choices:
        again = shlex.join([*typed, *session.script[len(typed) :]])
        _say(f"to search among what can be written: slipstream tune --patchable {again}")


def _measured(recipe: Recipe, speed: Speed | None) -> str:
    from slipstream.numbers import as_ratio, between_ratios

    if speed is None:
        return str(recipe)
    if not speed.is_bounded:
        return f"{recipe}, about {as_ratio(speed.ratio)}"
    return f"{recipe}, {as_ratio(speed.ratio)} ({between_ratios(speed.low, speed.high)})"


def _why_nothing(patch: Patch, written: Written, recipe: Recipe, session: Session) -> str:
    if patch.done:
        return ": the source already has every edit that can be made"
    if not recipe.choices and session.command == "tune":
        return ": the tuning kept nothing. slipstream check may find other causes, and patch can fix some of them"
    if written.lost.choices and not written.recipe.choices:
        return f": no edit of the source does {written.lost}"
    return ""


def _give(patch: Patch, path: Path, is_written: bool, force: bool, words: str = "") -> None:
    if is_written:
        _write(patch, force)
    else:
        _show(patch, path, words)


def _seconds(budget: str) -> float:
    from slipstream.workflows.tune import seconds_of

    try:
        return seconds_of(budget)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--budget") from None


def _prove(
    patch: Patch,
    session: Session,
    speed: Speed | None,
    path: Path,
    budget_s: float,
    is_written: bool,
    force: bool,
) -> int:
    """Races the patch, then prints or writes it. `speed` is the speed that the tuning measured for the recipe that the
    patch contains.

    A patch that is not proved faster, or whose numerics are not sound, is written only with --force.
    """
    try:
        verdict = _race(patch, session, budget_s)
        words = _proof(verdict, speed)
        _say(words)
        if is_written and verdict.decision != "kept" and not force:
            raise Refused(
                "the patch is not proved, so nothing was written. Try a longer --budget, or write it with --force."
            )
        _give(patch, path, is_written, force, words)
    except Refused as refusal:
        refusal.show()
        return refusal.exit_code
    except KeyboardInterrupt:
        _say("interrupted; no file was changed.")
        return 130
    except EndedBySignal as ended:
        _say(f"ended by {ended.name}; no file was changed. To measure again, run the same command again.")
        return ended.exit_code
    return 0


def _race(patch: Patch, session: Session, budget_s: float) -> Verdict:
    require_training("slipstream patch --prove")
    if session.summary is None:
        raise Refused(
            "--prove needs a session with training steps, and this session has none. Run slipstream tune first."
        )
    if Path(session.cwd) != Path.cwd():
        raise Refused(f"--prove must run the script where the session was made. Change to {session.cwd} first.")
    from slipstream.report.terminal.live_tune import LiveTune
    from slipstream.tuning.trials import RaceError
    from slipstream.workflows.prove_patch import prove

    files = {str(file.path.absolute()): file.after for file in patch.files}
    try:
        with LiveTune(sys.stderr) as live:
            live.start()
            return prove(session, files, patch.written, budget_s, live)
    except RaceError as error:
        raise Refused(str(error)) from None


def _proof(verdict: Verdict, tuned: Speed | None) -> str:
    """Returns the result of the race in one line, for the line above the diff."""
    from slipstream.numbers import as_ratio, times

    speed = times(verdict.speed) if verdict.speed is not None else reason_of(verdict)
    numerics = f"; {describe_numerics(verdict.numerics)}" if verdict.numerics is not None else ""
    recipe = f"; the recipe had {as_ratio(tuned.ratio)}" if tuned is not None else ""
    words = {"kept": "proved", "rejected": "refuted"}.get(verdict.decision, verdict.decision)
    return f"patched, against the original: {words}, {speed}{numerics}{recipe}"


def _source_file(typed: list[str]) -> Path:
    from slipstream.launch.target import refusal
    from slipstream.recipe.script_digest import source_file

    if sentence := refusal(typed):
        raise Refused(sentence)
    path = source_file(typed, Path())
    if path is None:
        raise Refused(f"The module {typed[1]} is not in {Path.cwd()}. Change to the folder that contains it.")
    return path


def _session(name: str, path: Path) -> Session:
    from slipstream.store.sessions import StorageError, load_session, newest_first

    if name != "latest":
        try:
            session = load_session(Path(name))
        except StorageError as error:
            raise Refused(str(error)) from None
        if _script_of(session).name != path.name:
            raise Refused(f"{name} is a session of {_script_of(session).name or 'no script'}, not of {path.name}.")
        return session
    found: list[Session] = []
    for root in dict.fromkeys((Path.cwd(), path.absolute().parent)):
        for file in newest_first(root):
            try:
                session = load_session(file)
            except StorageError:
                continue  # for example, an older version of slipstream wrote this session
            if _is_of(session, path, root):
                if session.tuning is not None:
                    return session
                found.append(session)
    if not found:
        raise Refused(f"No session of {path} is saved here. Make one: slipstream tune {path}")
    return next((session for session in found if session.models or session.loaders), found[0])


def _is_of(session: Session, path: Path, root: Path) -> bool:
    """Whether the session is of the script at `path`.

    The script must be the same file, or have the same path relative to the folder of the sessions. The second case is
    for projects that were moved or are mounted elsewhere.
    """
    then, here = _script_of(session), Path(os.path.normpath(path.absolute()))
    if then == here:
        return True
    return then.is_relative_to(session.cwd) and here == root / then.relative_to(session.cwd)


def _script_of(session: Session) -> Path:
    from slipstream.recipe.script_digest import source_file

    found = source_file(session.script, session.cwd) if session.script else None
    return Path(os.path.normpath(found)) if found is not None else Path()


def _recipe(given: Path | None, typed: list[str], path: Path, session: Session) -> Recipe:
    from slipstream.recipe.file import read_recipe
    from slipstream.records import Recipe

    beside = [folder / RECIPE for folder in dict.fromkeys((Path(), path.parent))]
    for file in [given] if given is not None else [one for one in beside if one.is_file()]:
        try:
            recipe = read_recipe(file)
        except ValueError as error:
            raise Refused(f"{error}.") from None
        if given is not None or not recipe.script or _is_same(recipe.script, typed):
            _say(f"{file}: {recipe.recipe}")
            return recipe.recipe
    made = session.tuning or session.fitting
    kept = made.recipe if made is not None else Recipe()
    if kept.choices:
        _say(f"the session of {session.created[:16].replace('T', ' ')}: {kept}")
    elif made is None:
        seen = "memory session" if session.command == "memory" else "check"
        _say(
            f"only a {seen} was saved, so there is no recipe yet. To make one: slipstream tune {shlex.quote(str(path))}"
        )
    else:
        _say("the tuning kept nothing, so there is no recipe to write.")
    return kept


def _is_same(script: Sequence[str], typed: Sequence[str]) -> bool:
    names = [one[1] if one[0] == "-m" and len(one) > 1 else Path(one[0]).name for one in (script, typed)]
    return names[0] == names[1]


def _make(session: Session, written: Written, path: Path, may_import: bool) -> Patch:
    from slipstream.recipe.source_edits import edits_in
    from slipstream.rewrite.errors import PatchError
    from slipstream.rewrite.finding_edits import cures
    from slipstream.rewrite.make_patch import make_patch
    from slipstream.rewrite.source_tree import SourceTree

    edits = [*edits_in(session, written.recipe, may_import), *edits_in(session, written.by_hand), *cures(session)]
    try:
        return make_patch(edits, SourceTree(session, path, _script_of(session)))
    except PatchError as error:
        raise Refused(str(error)) from None


def _show(patch: Patch, path: Path, words: str) -> None:
    """Prints the diff. `words` stand above the diff, as a comment that git and patch ignore."""
    from slipstream.rewrite.diff import root_of, unified

    root = root_of(patch.files, path, Path.cwd())
    sys.stdout.flush()
    sys.stdout.buffer.write(f"# {words}\n".encode() if words else b"")
    sys.stdout.buffer.write(unified(patch.files, root))
    sys.stdout.buffer.flush()
    place = "" if root == Path.cwd() else f" in {root}"
    _say(f"no file was changed. To apply the diff, add --write, or use git apply{place}.")


def _write(patch: Patch, force: bool) -> None:
    from slipstream.rewrite.apply import uncommitted, write
    from slipstream.rewrite.errors import PatchError

    if not force and (dirty := uncommitted(patch.files)):
        names = ", ".join(str(path) for path in dirty)
        raise Refused(f"{names}: there are changes that are not committed to git. Commit them first, or add --force.")
    try:
        write(patch.files)
    except PatchError as error:
        raise Refused(str(error)) from None
    for file in patch.files:
        _say(f"wrote {file.path}")


def _say_left(left: Sequence[LeftByHand], typed: list[str], recipe_path: Path | None) -> None:
    from slipstream.cli.run import run_command
    from slipstream.techniques._core.catalogue import catalogue

    for one in left:
        where = f" at {one.where}" if one.where else ""
        reason = one.reason.rstrip(".")
        _say(f"by hand, {one.edit.technique}{where}: " + (f"{one.text}\n    {reason}." if one.text else f"{reason}."))
    if techniques := dict.fromkeys(one.edit.technique for one in left if one.edit.technique in catalogue()):
        command = shlex.join(["slipstream", "run", *typed]) if recipe_path is None else run_command(typed, recipe_path)
        _say(f"until then, this command applies {', '.join(techniques)}: {command}")


def _say(sentence: str) -> None:
    click.echo(f"slipstream: {sentence}", err=True)
