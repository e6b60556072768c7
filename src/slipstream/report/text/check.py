"""The texts of a check: the headline, and sentences about what was run, how the run ended, what limits the step, and
how long the training will take.

This module words the conclusions of `diagnose` and draws no conclusions itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from slipstream.diagnose.hotspots import hottest_line, watched_stacks
from slipstream.diagnose.source_hints import place
from slipstream.diagnose.steps.rollout import LEAST_SHARE, rollouts
from slipstream.diagnose.steps.selection import has_trained, num_workers
from slipstream.diagnose.steps.training_time import binding_length
from slipstream.diagnose.steps.typical_step import sampled_step
from slipstream.diagnose.steps.undisturbed import has_headline
from slipstream.diagnose.steps.validation import collects_experience
from slipstream.diagnose.summary import COMPUTE_PHASES
from slipstream.numbers import in_ms, in_percent, in_seconds, plural
from slipstream.records import Session, Summary
from slipstream.report.terminal.console import ConsoleStyle, styled
from slipstream.report.text.memory import MEMORY, observed
from slipstream.report.text.notes import IDLE_GPU, idle_gpu_sentence
from slipstream.report.text.step import step_figure
from slipstream.report.text.tune import raced, whole_training


def basis(session: Session) -> str:
    """Returns what the report is based on: "48 steps watched · stopped after 31 s"."""
    if session.tuning is not None:
        return raced(session)
    parts = observed(session) if session.command == MEMORY else [watched(session)]
    return " · ".join(filter(None, [*parts, ending(session)]))


def headline_lines(session: Session, ink: ConsoleStyle) -> Iterator[Text]:
    """Yields the script and the basis of the report, on one line if both fit, else on two. A third line holds the
    exception that the script raised."""
    right = ink.clean(basis(session))
    left = styled(f" slipstream {ink.clean(session.command)}  ", "dim")
    left += styled(ink.clip(script_of(session), max(ink.width - left.cell_len - 1, 20)), "bold")
    blanks = ink.width - left.cell_len - len(right) - 1
    if blanks >= 2:
        yield left + Text(" " * blanks) + styled(right, "dim")
    else:
        yield left
        yield styled(f" {right}", "dim")
    if said := complaint(session):
        yield styled(f" {ink.clip(said, ink.width - 2)}", "red")


_LONGEST = 200  # characters of a script's exception
NOTHING_TO_GAIN = "This run found nothing to gain."


def script_of(session: Session) -> str:
    return " ".join(session.script) or "this program"


def watched(session: Session) -> str:
    """Returns the number of steps that the summary is based on: "48 steps watched", or "39 of 48 steps counted" if the
    other steps were disturbed.

    If the model was called but nothing was trained, the calls of the model are named "forward pass" or "inference
    step".
    """
    summary = session.summary
    num_steps = summary.num_steps if summary else len(session.steps)
    if num_steps and session.makes_optimizer and not has_trained(session):
        return f"no training step watched, {plural(num_steps, 'forward pass', 'es')} before the first"
    kind = "inference step" if num_steps and not has_trained(session) else "step"
    if summary and summary.num_undisturbed and summary.num_disturbed:
        return f"{num_steps} of {plural(num_steps + summary.num_disturbed, kind)} counted"
    return f"{plural(num_steps, kind)} watched"


def ending(session: Session) -> str:
    """Returns how the trial ended, as the end of a sentence."""
    took = in_seconds(session.ending.seconds)
    code = session.ending.exit_code
    match session.ending.reason:
        case "stopped":
            return f"stopped after {took}"
        case "finished":
            return f"ran to its end in {took}" + (f", exit code {code}" if code else "")
        case "raised" if session.ending.message.startswith("SystemExit"):
            return f"ended itself with exit code {code} after {took}"
        case "raised":
            return f"raised an exception after {took}"
        case "interrupted":
            return f"interrupted after {took}"
        case "killed":
            return f"killed after {took}"


def complaint(session: Session) -> str:
    """Returns what the script raised, if that says more than its exit code."""
    message = session.ending.message if session.ending.reason == "raised" else ""
    return "" if message == f"SystemExit: {session.ending.exit_code}" else message


def verdict(session: Session) -> str:
    """Returns one to three sentences about what limits the step. A session without steps has a sentence of its own."""
    if session.summary is None or session.summary.num_steps == 0:
        return _without_steps(session)
    if not has_headline(session.summary):
        return _not_known(session, session.summary)
    sentence = _bound(session.summary, num_workers(session))
    if session.makes_optimizer and not has_trained(session):
        sentence = f"No training step was seen, only calls of the model before the first step. {sentence}"
    acting = rollouts(session)
    if acting is not None and acting.share >= LEAST_SHARE:
        sentence += f" Rollouts, in which nothing is trained, take {in_percent(acting.share)} of the time."
    return sentence if session.findings else f"{sentence} {_without_findings(session, session.summary)}"


def _not_known(session: Session, summary: Summary) -> str:
    """Returns the sentence for a session with too few steps for a median."""
    figure, basis = step_figure(summary)
    if summary.num_undisturbed == 0:
        during = f"all {plural(summary.num_steps, 'step')} ({figure})"
        used = plural(round(summary.foreign_cores, 1), "core")
        return f"Other programs used {used} during {during}. How long a step takes and what limits it is not known."
    longer = " --seconds gives it more time." if session.ending.reason == "stopped" else ""
    seen = f"Only {basis} {'was' if summary.num_steps == 1 else 'were'} seen ({figure})"
    return f"{seen}: too few to say how long a step takes and what limits it.{longer}"


def _without_findings(session: Session, summary: Summary) -> str:
    """Returns the sentence for a session without findings.

    If the script's own lines take most of the step, the sentence names the slowest line, because slipstream may not
    know its cause. The average step is considered too, because a few long steps may take most of the time.
    """
    step = sampled_step(session, summary.step_ms, summary.phases)
    is_own = summary.bound == "other" or (step.is_average and step.other_ms > 0.5 * step.step_ms)
    hot = hottest_line(session, watched_stacks(session, "main", ("other",))) if is_own else None
    return f"No known cause was found; the slowest line is {place(hot.site)}." if hot else NOTHING_TO_GAIN


def warning(session: Session) -> str:
    """Returns the warning that a GPU is not used, or "".

    The session's `idle_gpu` takes precedence, because it includes the cause.
    """
    if session.idle_gpu is not None:
        return idle_gpu_sentence(session, session.idle_gpu)
    facts, gpus = session.environment.torch, session.environment.gpus
    if not gpus or facts is None or not facts.device.startswith("cpu"):
        return ""
    return f"{IDLE_GPU} ({gpus[0].name})."


def training_time(session: Session) -> str:
    """Returns how long the training takes: "90 epochs: 14 h at this rate; 9 h if input were free". Returns "" if the
    length is not known."""
    summary = session.summary
    if summary is None or summary.seconds_left is None or not has_headline(summary):
        return ""
    sentence = f"{in_seconds(summary.seconds_left)} at this rate"
    if summary.seconds_best is not None and summary.seconds_best < 0.97 * summary.seconds_left:
        sentence += f"; {in_seconds(summary.seconds_best)} if input were free"
    return f"{whole_training(binding_length(session))}: {sentence}"


def evaluation(session: Session) -> str:
    """Returns the share of the epoch that is validation, and how much validation was observed: "18% of the epoch is
    validation (...)"."""
    summary = session.summary
    if not session.evaluations:
        return summary.evaluation_note if summary else ""
    seen = _evaluations(session)
    if collects_experience(session):
        return f"none seen; between updates the model acts, on fewer samples than it learns from ({seen})"
    if summary and summary.evaluation_note:
        return f"{summary.evaluation_note.rstrip('.')} ({seen})"
    if summary and summary.evaluation_share is not None:
        return f"{in_percent(summary.evaluation_share)} of the epoch is validation ({seen})"
    return f"validation seen: {seen}"


def _evaluations(session: Session) -> str:
    """Returns the number and length of the evaluations. Evaluations before the first step, such as a trainer's sanity
    check, are mentioned but not counted.
    """
    during = [one for one in session.evaluations if one.after_step >= 0]
    seen = during or session.evaluations
    seconds = sum(one.end_ns - one.start_ns for one in seen) / 1e9
    batches = sum(one.num_batches for one in seen)
    before = "; not counting one before the first step" if len(seen) < len(session.evaluations) else ""
    if session.steps and not during:
        before = ", before the first step"
    return f"{plural(len(seen), 'stretch', 'es')}, {plural(batches, 'batch', 'es')}, {in_seconds(seconds)}{before}"


def _bound(summary: Summary, workers: int) -> str:
    step = f"{in_ms(summary.step_ms)} a step"
    ceilings = summary.ceilings
    free = _if_data_were_free(summary, workers)
    match summary.bound:
        case "input":
            return f"The step waits for data {_share(summary, 'input')} of the time: {step}{free}."
        case "compute":
            return f"{_compute(summary)}: {step}{free}."
        case "cores":
            least = f", at least {in_ms(ceilings.shared_ms)} on these cores" if ceilings.shared_ms else ""
            return f"The loader and the model compete for the same cores: {step}{least}."
        case "other":
            return (
                f"The step spends {_share(summary, 'other')} of its time outside the loader, the model and the "
                f"optimizer: {step}{free}."
            )
        case "unknown":
            return f"{step[0].upper()}{step[1:]}{free}; what limits it could not be determined."


def _compute(summary: Summary) -> str:
    name = "forward pass" if summary.is_inference else "model"
    busy = sum(summary.phases.get(phase, 0.0) for phase in COMPUTE_PHASES) / summary.step_ms if summary.step_ms else 0.0
    waits = summary.phases.get("input", 0.0) >= 0.1 * summary.step_ms
    if busy <= 0.5:
        sentence = f"The {name} takes {in_percent(busy)} of the step, more than anything else"
    else:
        sentence = f"The {name} takes most of the step" if waits else f"The {name} limits the speed"
    return f"{sentence}, and the step waits for data {_share(summary, 'input')} of the time" if waits else sentence


def _if_data_were_free(summary: Summary, workers: int) -> str:
    """Returns the compute ceiling in words.

    The ceiling was measured at another time than the wait for data. If the two contradict each other, the text says so
    and gives no number.
    """
    compute_ms, step_ms = summary.ceilings.compute_ms, summary.step_ms
    waits = summary.phases.get("input", 0.0) >= 0.1 * step_ms
    if compute_ms is None:
        return ""
    if compute_ms > 0.97 * step_ms:
        return "; too noisy to say how much free data would help" if waits else ", and free data would not help"
    if not waits and workers == 0:
        return ", and free data would hardly help"
    return f", {in_ms(compute_ms)} if data were free"


def _share(summary: Summary, phase: str) -> str:
    return in_percent(summary.phases.get(phase, 0.0) / summary.step_ms if summary.step_ms else 0.0)


def _without_steps(session: Session) -> str:
    script = next((part for part in session.script if part != "-m"), "The program")
    if session.ending.reason in ("stopped", "interrupted", "killed"):
        script += " was"
    if session.ending.message and session.ending.reason in ("raised", "killed"):
        why = complaint(session) if session.ending.reason == "raised" else session.ending.message
        when = "in its warm-up" if session.steps else "before any step"
        return f"{script} {ending(session)}, {when}" + (f": {_in_short(why)}" if why else ".")
    if session.evaluations:
        return f"{script} {ending(session)}; no training step was seen, but evaluation was: {_evaluations(session)}."
    if not session.models:
        return f"{script} {ending(session)}; no module was called, so there is no step to measure."
    if not session.steps:
        return f"{script} {ending(session)}; a module was called, but no training step could be recognised."
    if not has_trained(session):
        return f"{script} {ending(session)}; the model was called, but nothing was trained."
    longer = ": --seconds gives it more time" if session.ending.reason == "stopped" else ""
    return f"{script} {ending(session)}, in its warm-up: too few steps to measure{longer}."


def _in_short(message: str) -> str:
    """Shortens the message, because Python has already printed the whole message."""
    first = message.strip().split("\n", 1)[0]
    return first if first == message.strip() and len(first) <= _LONGEST else f"{first[:_LONGEST].rstrip()} …"
