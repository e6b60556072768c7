"""Every step prints, logs or draws something."""

from __future__ import annotations

from slipstream.diagnose.gain import gain_without
from slipstream.diagnose.hotspots import FEWEST_SAMPLES, hottest_line, phase_ms_of, total, watched_stacks
from slipstream.diagnose.stages import is_logging
from slipstream.diagnose.wording import ms, percent
from slipstream.records import Finding, Session, StackCount, Summary

SAVED = 0.95  # logging every twentieth step
LEAST_SHARE = 0.03


def find(session: Session, summary: Summary) -> list[Finding]:
    main = watched_stacks(session, "main")
    # The line is what logs: turning the values into text on it is part of the price.
    lines = {(stack.file, stack.line) for stack in main if stack.file and is_logging(stack)}

    def logs(stack: StackCount) -> bool:
        return is_logging(stack) or ((stack.file, stack.line) in lines and stack.stage != "compute")

    logging_ms, stacks = phase_ms_of(session, {"other": summary.phases.get("other", 0.0)}, logs)
    if total(stacks) < FEWEST_SAMPLES or logging_ms < LEAST_SHARE * summary.step_ms:
        return []
    hot = hottest_line(session, stacks)
    return [
        Finding(
            cause="frequent_logging",
            title="Logging takes a part of every step",
            evidence=f"Printing and logging take {ms(logging_ms)} of {ms(summary.step_ms)} ms a step "
            f"({percent(logging_ms / summary.step_ms)}).",
            predicted_gain=gain_without(summary.step_ms, logging_ms, SAVED),
            change="if step % 20 == 0:  # around this line",
            site=hot.site if hot else None,
        )
    ]
