"""Printing, logging, drawing, writing and metrics for people to read take a noticeable part of the steps."""

from __future__ import annotations

from collections import Counter

from slipstream.diagnose.gain import gain_of
from slipstream.diagnose.hotspots import FEWEST_SAMPLES, hottest_line, phase_ms_of, total, watched_stacks
from slipstream.diagnose.source_hints import more_rarely, trainers_own, warning_of
from slipstream.diagnose.stack_facts import asks_to_log, is_logging
from slipstream.diagnose.steps.typical_step import sampled_step
from slipstream.numbers import in_percent, part_of_ms
from slipstream.records import Finding, Session, Site, StackCount, Summary

SAVED = 0.95  # Share saved if only every twentieth step logs
LEAST_SHARE = 0.03


def find(session: Session, summary: Summary) -> list[Finding]:
    lines = _lines(watched_stacks(session, "main"))

    def logs(stack: StackCount) -> bool:
        return is_logging(stack) or ((stack.file, stack.line) in lines and stack.stage != "compute")

    step = sampled_step(session, summary.step_ms, summary.phases)
    logging_ms, stacks = phase_ms_of(session, {"other": step.other_ms}, logs)
    if total(stacks) < FEWEST_SAMPLES or logging_ms < LEAST_SHARE * step.step_ms:
        return []
    # The phase `other` of the usual step is too short to contain the logging, so the script logs in some steps only.
    is_rare = step.is_average and logging_ms > summary.phases.get("other", 0.0)
    hot = hottest_line(session, stacks)
    then_ms = max(step.step_ms - SAVED * logging_ms, summary.ceilings.input_ms or 0.0)
    num_rating = total(stacks, lambda stack: stack.stage == "metrics")
    work = "Metrics" if num_rating > 0.5 * total(stacks) else "Printing, logging and writing down"
    return [
        Finding(
            cause="frequent_logging",
            title=_title(work, is_rare),
            evidence=f"{work} take {part_of_ms(logging_ms, step.step_ms)} {step.words} "
            f"({in_percent(logging_ms / step.step_ms)}).",
            predicted_gain=gain_of(step.step_ms, then_ms),
            change=_change(session, hot.site if hot else None, is_rare),
            site=hot.site if hot else None,
            settings={"logging_steps": "100"},
            advice=warning_of(session, hot.site if hot else None),
        )
    ]


def _title(work: str, is_rare: bool) -> str:
    if is_rare:
        return "Metrics make some steps long" if work == "Metrics" else "Logging makes some steps long"
    return "Metrics are computed in every step" if work == "Metrics" else "Logging takes a part of every step"


def _lines(stacks: list[StackCount]) -> set[tuple[str, int]]:
    """The lines that log, including the conversion of values into text.

    A line counts if its own expression logs, or if most of its samples are in code that logs. A line that starts a
    whole training therefore does not count, although the trainer logs sometimes.
    """
    every, logging = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for stack in stacks:
        if stack.file and stack.stage != "compute":
            every[stack.file, stack.line] += stack.count
            logging[stack.file, stack.line] += stack.count * is_logging(stack)
    asking = {(stack.file, stack.line) for stack in stacks if stack.file and asks_to_log(stack)}
    return asking | {line for line, count in logging.items() if count > 0.5 * every[line]}


def _change(session: Session, site: Site | None, is_rare: bool) -> str:
    lightning = "Trainer(..., log_every_n_steps=100), and self.log without prog_bar=True"
    own = trainers_own(session, site, lightning, "TrainingArguments(..., logging_steps=100)", "log")
    if is_rare:
        return own or "run this line less often: it runs in some steps only, but they are long"
    return own or f"every 20 steps, not each: {more_rarely(session, site, 20, 'print(...)')}"
