"""The ride of `run`: in this process, with a recipe or without. Adds a line on stderr at the very end, one more where a
part of the recipe could not be put in place or not everywhere, and nothing else."""

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
from slipstream.trial.lifecycle import ScriptRun, TrialSettings, board
from slipstream.trial.recipe_protocol import ApplyRecipe

_AS_IT_IS = Recipe()
Explain = Callable[[BaseException], Iterable[str]]


def run_watched(
    script: list[str],
    recipe: Recipe = _AS_IT_IS,
    fit: ApplyRecipe | None = None,
    base_step_ms: float | None = None,
    hint: str = "",
    on_shortage: Explain | None = None,
) -> None:
    """`base_step_ms`: a step without the recipe, as tune measured it. `hint`: said behind the last line if there was
    anything to train. `on_shortage`: what is to be said if the script ended because memory ran out."""
    process = os.getpid()
    explained: list[str] = []
    ride = board(TrialSettings(mode="run", num_steps=0, seconds=0.0, script=script, recipe=recipe), fit)

    def say() -> None:
        if os.getpid() != process:
            return  # a child that the script forked
        with contextlib.suppress(Exception):
            for line in last_words(ride, base_step_ms, hint):
                print(line, file=sys.__stderr__, flush=True)
            for line in explained:
                print(f"slipstream: {line}", file=sys.__stderr__, flush=True)

    patches = Patches(ride.complain, lambda: False)
    if recipe.choices:
        from slipstream.trial import child_processes

        child_processes.follow(ride)  # training processes that the script spawns get the recipe too
        patches.on_close(lambda: child_processes.unfollow(ride))
    else:
        hide_in_module(ride.arrivals, patches)

    def leave(ending: Ending) -> None:
        ride.take_away(patches)
        ride.leave(ending)
        error = sys.exc_info()[1]  # while it lives, so does everything that filled the memory
        if on_shortage is not None and error is not None and is_shortage(ending):
            with contextlib.suppress(Exception), given_air():
                explained.extend(on_shortage(error))

    atexit.register(say)  # the first registered runs last: after everything that the script says
    launch(script, leave)


def last_words(ride: ScriptRun, base_step_ms: float | None, hint: str = "") -> Iterator[str]:
    is_training = ride.tally is not None and ride.tally.num_steps > 0
    told = [words for speak in ride.context.last_words if (words := speak())] if ride.context is not None else []
    happened = "".join(f"; {words}" for words in told)
    yield f"{ride.summary_line()}{_saved(ride, base_step_ms)}{happened}{hint if is_training else ''}"
    if ride.context is None:
        return
    applied = {_technique_of(sentence) for sentence in ride.context.changes}
    for sentence in ride.context.declined:
        yield f"slipstream: {'note' if _technique_of(sentence) in applied else 'not applied'}: {sentence}"


def is_shortage(ending: Ending) -> bool:
    """By the words of torch's allocators and of Python's."""
    return ending.reason == "raised" and tells_shortage(ending.message)


def _technique_of(sentence: str) -> str:
    return sentence.partition(":")[0]


def _saved(ride: ScriptRun, base_step_ms: float | None) -> str:
    """Against the base that tune measured: on this machine, but at another time."""
    tally = ride.tally
    step_s = tally.step_s() if tally is not None else None
    if tally is None or step_s is None or not base_step_ms:
        return ""
    saved_s = tally.num_steps * (base_step_ms / 1000 - step_s)
    steps = f"; {step_s * 1000:.1f} ms a step, {{}} the {base_step_ms:.1f} ms that tune measured without the recipe"
    if saved_s <= 0:
        return steps.format("no faster than")
    return f"{steps.format('in place of')}: about {_duration(saved_s)} saved"


def _duration(seconds: float) -> str:
    for limit, unit_s, unit in ((60, 1, "s"), (3600, 60, "min"), (float("inf"), 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit_s:.1f} {unit}"
    raise AssertionError("no duration is longer")
