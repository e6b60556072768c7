"""Runs the script in this process for `run`, with or without a recipe. At the very end it prints one line on stderr,
and one more line for each part of the recipe that could not be applied everywhere. If the script ended because memory
ran out, it also prints what the caller's `on_shortage` returns."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator

from slipstream.launch.as_main import launch
from slipstream.launch.hide_frames import hide_in_module
from slipstream.records import Ending, Recipe
from slipstream.sandbox.oom_messages import given_air, tells_shortage
from slipstream.seams.patching import Patches
from slipstream.trial.lifecycle import ScriptRun, TrialSettings, start_run
from slipstream.trial.recipe_protocol import ApplyRecipe

_AS_IT_IS = Recipe()
Explain = Callable[[BaseException], Iterable[str]]


def run_watched(
    script: list[str],
    recipe: Recipe = _AS_IT_IS,
    apply_recipe: ApplyRecipe | None = None,
    base_step_ms: float | None = None,
    hint: str = "",
    on_shortage: Explain | None = None,
) -> None:
    """Runs the script to its end.

    `base_step_ms` is the step time without the recipe, as `tune` measured it. `hint` is appended to the line with the
    number of steps, if the script trained. `on_shortage` returns lines to print if the script ended because memory ran
    out."""
    process = os.getpid()
    explained: list[str] = []
    run = start_run(TrialSettings(mode="run", num_steps=0, seconds=0.0, script=script, recipe=recipe), apply_recipe)

    def print_summary() -> None:
        if os.getpid() != process:
            return  # a child that the script forked
        with contextlib.suppress(Exception):
            for line in last_words(run, base_step_ms, hint):
                print(line, file=sys.__stderr__, flush=True)
            for line in explained:
                print(f"slipstream: {line}", file=sys.__stderr__, flush=True)

    patches = Patches(run.complain, lambda: False)
    if recipe.choices:
        from slipstream.trial import child_processes

        child_processes.follow(run)  # training processes that the script spawns get the recipe too
        patches.on_close(lambda: child_processes.unfollow(run))
    else:
        hide_in_module(run.import_hooks, patches)

    def leave(ending: Ending) -> None:
        run.take_away(patches)
        run.leave(ending)
        error = sys.exc_info()[1]  # through its frames, the exception holds the objects that filled the memory
        if on_shortage is not None and error is not None and is_shortage(ending):
            with contextlib.suppress(Exception), given_air():
                explained.extend(on_shortage(error))

    atexit.register(print_summary)  # exit handlers run in reverse order: this one runs after the script's own
    launch(script, leave)


def last_words(run: ScriptRun, base_step_ms: float | None, hint: str = "") -> Iterator[str]:
    """Yields the lines to print when the script has ended."""
    is_training = run.step_counter is not None and run.step_counter.total_steps > 0
    told = [words for speak in run.context.last_words if (words := speak())] if run.context is not None else []
    happened = "".join(f"; {words}" for words in told)
    yield f"{run.summary_line()}{_saved(run, base_step_ms)}{happened}{hint if is_training else ''}"
    if run.context is None:
        return
    applied = {change.technique for change in run.context.change_notes}
    for note in run.context.decline_notes:
        yield f"slipstream: {'note' if note.technique in applied else 'not applied'}: {note}"


def is_shortage(ending: Ending) -> bool:
    """Whether memory ran out, judged by the messages of torch's allocators and of Python."""
    return ending.reason == "raised" and tells_shortage(ending.message)


def _saved(run: ScriptRun, base_step_ms: float | None) -> str:
    """Returns a comparison of the step time with the base's step time, which `tune` measured at another time."""
    step_counter = run.step_counter
    step_s = step_counter.step_s() if step_counter is not None else None
    if step_counter is None or step_s is None or not base_step_ms:
        return ""
    saved_s = step_counter.total_steps * (base_step_ms / 1000 - step_s)
    steps = f"; {step_s * 1000:.1f} ms a step, {{}} the {base_step_ms:.1f} ms that tune measured without the recipe"
    if saved_s <= 0:
        return steps.format("no faster than")
    return f"{steps.format('in place of')}: about {_duration(saved_s)} saved"


def _duration(seconds: float) -> str:
    for limit, unit_s, unit in ((60, 1, "s"), (3600, 60, "min"), (float("inf"), 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit_s:.1f} {unit}"
    raise AssertionError("no duration is longer")
