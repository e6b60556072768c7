"""What a reinforcement learner's environment takes of the step. It answers to the model, so nobody can prepare it
beforehand: it is told, and no gain is promised for it."""

from __future__ import annotations

import re

from slipstream.diagnose.hotspots import FEWEST_SAMPLES, hottest_line, phase_ms_of, total
from slipstream.diagnose.typical import sampled_step
from slipstream.diagnose.wording import ms
from slipstream.records import Session, StackCount

LEAST_SHARE = 0.15  # of the step
STEPS = re.compile(r"\b\w*env\w*(\[[^\]]*\])?\.(step|reset)\s*\(", re.IGNORECASE)


def is_environment(stack: StackCount) -> bool:
    """env.step(action), self.envs.step(actions), envs[i].reset()."""
    return bool(STEPS.search(stack.expression))


def environment_note(session: Session, step_ms: float, phases: dict[str, float]) -> str:
    """A sentence where it is a good part of the step, else ""."""
    step = sampled_step(session, step_ms, phases)
    taken_ms, stacks = phase_ms_of(session, {"other": step.other_ms}, is_environment)
    hot = hottest_line(session, stacks)
    if hot is None or total(stacks) < FEWEST_SAMPLES or taken_ms < LEAST_SHARE * step.step_ms:
        return ""
    return (
        f"The environment takes {ms(taken_ms)} of {ms(step.step_ms)} ms {step.words} ({hot.expression}, line "
        f"{hot.site.line}). It answers to the model, so no loader can prepare it: more environments at once, or in "
        "processes of their own, are what helps."
    )
