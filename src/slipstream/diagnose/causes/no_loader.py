"""Data are prepared in the training loop itself, while the model waits."""

from __future__ import annotations

import re
from collections import defaultdict

from slipstream.diagnose.gain import gain_without
from slipstream.diagnose.hoisting import hoist, hoisted
from slipstream.diagnose.hotspots import FEWEST_SAMPLES, total, watched_stacks
from slipstream.diagnose.notes import is_environment
from slipstream.diagnose.source_hints import statement_on
from slipstream.diagnose.stack_facts import is_logging, line_to_change
from slipstream.diagnose.steps.rollout import LEAST_SHARE as LEAST_ACTING
from slipstream.diagnose.steps.rollout import acting_with_gradients, rollouts
from slipstream.diagnose.steps.selection import watched_steps
from slipstream.diagnose.steps.typical_step import sampled_step
from slipstream.numbers import in_percent, part_of_ms
from slipstream.records import Finding, Session, Site, StackCount, Summary

LEAST_SHARE = 0.15  # Share of the step
# Names of functions that fetch a batch. Between forward and backward most lines compute the loss, but some scripts
# fetch the next batch there.
FETCHES = re.compile(r"^(?!.*(loss|criterion)).*(batch|load|fetch|sample|data|next)", re.IGNORECASE)
LEAST_ON_LINE = 0.05  # Share of the step that the line to change must take
SAVED = 0.85  # Share saved if data are prepared once, by array operations, or in parallel by a loader
PREPARING = ("read", "decode", "transform", "collate", "python", "other")
GENERAL = "convert once before the loop (data = torch.from_numpy(array)) and index it here: data[rows]"
ASIDE = "Or move this into a Dataset and let a DataLoader's workers prepare the next batch meanwhile."
SHUFFLED = "If the table is shuffled in between, shuffle the numbers of its rows instead: all_x[perm[i:j]]."
CONVERTS = re.compile(r"\b(tensor|as_tensor|from_numpy|asarray|array|tolist|to_numpy|iloc|loc)\b")


def find(session: Session, summary: Summary) -> list[Finding]:
    if any(step.num_batches for step in watched_steps(session)):
        return []
    acting = rollouts(session)
    if (acting is not None and acting.share >= LEAST_ACTING) or acting_with_gradients(session) is not None:
        return []  # Most of the samples are in an environment, whose states cannot be prepared in advance.
    everything = watched_stacks(session, "main", ("other",))
    stacks = _preparing_lines(everything)
    if total(everything) < FEWEST_SAMPLES:
        return []
    step = sampled_step(session, summary.step_ms, summary.phases)
    preparing_ms = step.other_ms * total(stacks) / total(everything)
    hot = line_to_change(session, stacks)
    if hot is None or preparing_ms < LEAST_SHARE * step.step_ms:
        return []
    share = total(stacks, lambda stack: (stack.file, stack.line) == (hot.site.file, hot.site.line)) / total(stacks)
    if share * preparing_ms < LEAST_ON_LINE * step.step_ms:
        return []  # The time is spread over many lines, so changing a single line gains little.
    lines = _lines(session, hot.site)
    return [
        Finding(
            cause="no_loader",
            title="Data are prepared in the training loop",
            evidence=f"{part_of_ms(preparing_ms, step.step_ms)} {step.words} go into preparing data in the loop, "
            f"{in_percent(share)} of them on this line; no loader was used.",
            predicted_gain=gain_without(step.step_ms, preparing_ms, SAVED),
            change=lines or GENERAL,
            site=hot.site,
            techniques=["batched_fetch"],
            advice=SHUFFLED if lines else ASIDE,
        )
    ]


def _lines(session: Session, site: Site) -> str:
    """The user's line with its table converted before the loop; "" if the loop may change the table."""
    statement = statement_on(session, site)
    if statement is None or not (statement.is_whole and statement.is_in_loop):
        return ""
    changing = {name.partition(".")[0] for name in statement.changing}
    return "" if any(part.tables & changing for part in hoist(site.text)) else hoisted(site.text)


def _preparing_lines(stacks: list[StackCount]) -> list[StackCount]:
    """All samples of the lines that prepare data, including the samples in torch calls of these lines."""
    lines: defaultdict[tuple[str, int], list[StackCount]] = defaultdict(list)
    for stack in stacks:
        if stack.file:
            lines[stack.file, stack.line].append(stack)
    return [stack for line in lines.values() if _prepares(line) for stack in line]


def _prepares(line: list[StackCount]) -> bool:
    if any(stack.stage in ("saving", "update") or is_logging(stack) or is_environment(stack) for stack in line):
        return False
    return total(line, _is_preparing) >= 0.5 * total(line)


def _is_preparing(stack: StackCount) -> bool:
    if "detach(" in stack.expression:
        return False  # The tensor had a graph, so it is an output of the model and not data.
    if stack.stage == "loss" and FETCHES.search(stack.function):
        return True
    return stack.stage in PREPARING or bool(CONVERTS.search(stack.expression))
