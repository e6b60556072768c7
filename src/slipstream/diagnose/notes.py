"""Notes: sentences about facts that are not findings, because no gain in time is predicted for them.

Notes cover three subjects. A reinforcement learner's environment may take a large part of the step, and no loader can
prepare its states. The machine may be busy, or may rule out a recommendation. The model may train in evaluation mode,
which changes the result and not the time.
"""

from __future__ import annotations

import re

from slipstream.diagnose.gain import CLEARLY, rehearsal_of, rehearsed_words
from slipstream.diagnose.hotspots import FEWEST_SAMPLES, hottest_line, phase_ms_of, total
from slipstream.diagnose.input_path import costs_time, granted_share, input_path
from slipstream.diagnose.source_hints import place
from slipstream.diagnose.speedtest_ranges import is_busy
from slipstream.diagnose.steps.selection import is_on_cpu, outside_evaluations
from slipstream.diagnose.steps.typical_step import sampled_step
from slipstream.numbers import in_percent, part_of_ms, plural
from slipstream.records import Event, Session, StackCount, Summary

LEAST_SHARE = 0.15  # Share of the step
STEPS = re.compile(r"\b\w*env\w*(\[[^\]]*\])?\.(step|reset)\s*\(", re.IGNORECASE)


def is_environment(stack: StackCount) -> bool:
    """Whether the expression steps or resets an environment: env.step(action), self.envs.step(actions),
    envs[i].reset().
    """
    return bool(STEPS.search(stack.expression))


def environment_note(session: Session, step_ms: float, phases: dict[str, float]) -> str:
    """A sentence if the environment takes a large part of the step, else ""."""
    step = sampled_step(session, step_ms, phases)
    taken_ms, stacks = phase_ms_of(session, {"other": step.other_ms}, is_environment)
    hot = hottest_line(session, stacks)
    if hot is None or total(stacks) < FEWEST_SAMPLES or taken_ms < LEAST_SHARE * step.step_ms:
        return ""
    return (
        f"The environment takes {part_of_ms(taken_ms, step.step_ms)} {step.words} ({hot.expression}, line "
        f"{hot.site.line}). It depends on the model's actions, so no loader can prepare it. Run more environments at "
        "once, or run them in processes of their own."
    )


LEAST_GRANTED = 0.8  # Share of a core for a computing thread. With a smaller share, other programs use the cores.
_LONGER = "Times are longer than on a quiet machine; shares of the step mean more than milliseconds."


def machine_notes(session: Session, summary: Summary) -> list[str]:
    notes: list[str] = []
    path = input_path(session, summary)
    if path is not None and not (path.loader.num_workers or path.loader.num_threads) and costs_time(summary, path):
        usable = session.environment.num_usable
        if usable < 1.5 and path.waits < 0.5:
            notes.append(f"The loader has no workers, but with {usable:g} usable core they would gain nothing here.")
    if session.foreign_load:
        was_busy = summary.num_disturbed > 0
        notes += [load_note(summary)] if was_busy else []
    else:
        guess = _guessed_load(session, summary)
        was_busy = bool(guess)
        notes += [f"{guess} {_LONGER}"] if guess else []
    if was_busy:
        notes += _undecided_threads(session)
    if session.environment.gpus and is_on_cpu(session):
        notes.append(f"The training runs on the CPU although there is a GPU: {session.environment.gpus[0].name}.")
    return notes


def _guessed_load(session: Session, summary: Summary) -> str:
    """A sentence if the machine seems to have been busy, for systems that do not report the load of other programs."""
    if is_short_of_cores(session, summary):
        share = in_percent(granted_share(session, summary.ceilings))
        return f"The machine was busy: a computing thread of the script had {share} of a core."
    # Threads that wait for each other also use CPU time, so `is_short_of_cores` may miss a busy machine.
    if is_busy(session.environment) and is_on_cpu(session):
        load, usable = session.environment.load, session.environment.num_usable
        return f"The machine was busy when the measurement began: a load of {load:.1f} on {plural(usable, 'core')}."
    return ""


def load_note(summary: Summary) -> str:
    """A sentence such as "Other programs used 1.2 cores during 9 of 40 steps: they are left out."; else ""."""
    num_all = summary.num_disturbed + (summary.num_undisturbed or 0)
    if not summary.num_disturbed:
        return ""
    used = f"Other programs used {plural(round(summary.foreign_cores, 1), 'core')} during"
    if summary.num_undisturbed:
        return f"{used} {summary.num_disturbed} of {plural(num_all, 'step')}: they are left out."
    return f"{used} all {plural(num_all, 'step')}. {_LONGER}"


def is_short_of_cores(session: Session, summary: Summary) -> bool:
    """Whether the script's threads did not get the cores that they asked for."""
    return granted_share(session, summary.ceilings) < LEAST_GRANTED


def _undecided_threads(session: Session) -> list[str]:
    """A note if torch does not use one thread per core, and the rehearsal with one thread per core was not faster.

    This function is called only if other programs used the cores.
    """
    facts, cores, race = session.environment.torch, session.environment.num_cores, rehearsal_of(session, "threads")
    if facts is None or race is None or facts.num_threads == cores or race.low >= CLEARLY:
        return []
    return [
        f"torch computes with {plural(facts.num_threads, 'thread')} on {plural(cores, 'core')}. {race.setting} were no "
        f"faster ({rehearsed_words(race)}), but other programs used the cores: check again on a quiet machine."
    ]


FEW = 3  # Fewer calls in evaluation mode are not reported. They may serve another purpose.


def mode_note(session: Session) -> str | None:
    """A note for a model that trains in evaluation mode.

    A model does so if validation calls eval() and the script calls train() only once, before its first epoch. After the
    first validation dropout is off and batch norm keeps its old statistics. A model that was never in training mode is
    not reported.
    """
    with_grad = (event for event in session.events if event.kind == "forward" and event.grad)
    calls = outside_evaluations(session, with_grad)
    for ident in dict.fromkeys(call.ident for call in calls if call.training):
        own = [call for call in calls if call.ident == ident]
        last = max(position for position, call in enumerate(own) if call.training)
        if len(own) - last > FEW:
            return _sentence(session, own[last + 1])
    return None


def _sentence(session: Session, call: Event) -> str:
    step = sum(step.end_ns <= call.start_ns for step in session.steps) + 1
    site = next((model.site for model in session.models if model.ident == call.ident), None)
    where = f" (called at {place(site)})" if site else ""
    return (
        f"From step {step} on the model{where} learns in evaluation mode, without dropout and with batch norm's old "
        "statistics: eval() was called and train() not again. If that is not meant, call train() at the start of "
        "every epoch."
    )
