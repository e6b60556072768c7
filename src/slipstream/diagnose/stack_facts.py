"""Classifies stack samples: Python or C, collating, logging, or reading values out of tensors."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slipstream.diagnose.hotspots import Hotspot, hottest_line
from slipstream.diagnose.input_path import InputPath
from slipstream.records import Session, StackCount

LOOP = 0.15  # A function loops over values if at least this share of its samples is in bytecode.
TORCH_PICKS = ("data/dataset.py:", "data/dataloader.py:", "data/sampler.py:", "_utils/fetch.py:", "_utils/worker.py:")


def python_share(stacks: Sequence[StackCount], mistaken: float = 0.0) -> float:
    """The share of samples in bytecode rather than in C code that a line called.

    On a busy machine some samples in C look like bytecode. `mistaken` is the share of samples that look like bytecode
    in a part of the step where only C can have run.
    """
    whole = sum(stack.count for stack in stacks)
    certain = sum(stack.count for stack in stacks if _is_comprehension(stack.expression))
    likely = sum(stack.count for stack in stacks if not stack.in_call and not _is_comprehension(stack.expression))
    if whole == 0:
        return 0.0
    excess = max(0.0, likely - mistaken * (whole - certain)) / max(0.05, 1 - mistaken)
    return min(1.0, (certain + excess) / whole)


def is_python(stack: StackCount) -> bool:
    return not stack.in_call or _is_comprehension(stack.expression)


def is_loop(session: Session, stacks: Sequence[StackCount]) -> bool:
    """Whether Python handles values one by one. Most samples in C are then in the small calls of this loop."""
    return python_share(stacks, mistaken_share(session)) >= LOOP


def line_to_change(session: Session, stacks: Sequence[StackCount]) -> Hotspot | None:
    """The hottest line; for a loop, the hottest line in Python.

    A line that converts the loop's list may have more samples, but it is slow only because of the loop.
    """
    looping = [stack for stack in stacks if is_python(stack)] if is_loop(session, stacks) else []
    # Between two lines of its loop a function has no current line, and the sampler records the function's first line.
    # No work is done on the first line, so its samples are left out.
    inside = [stack for stack in looping if not stack.expression.startswith(("def ", "async def ", "@"))]
    return hottest_line(session, inside or looping or stacks)


def mistaken_share(session: Session) -> float:
    """The share of the samples in backward that look like bytecode. Backward runs only C code."""
    stacks = [stack for stack in session.stacks if stack.role == "main" and stack.phase == "backward"]
    whole = sum(stack.count for stack in stacks)
    return sum(stack.count for stack in stacks if not stack.in_call) / whole if whole >= 30 else 0.0


def _is_comprehension(expression: str) -> bool:
    """Whether the sample's expression is a whole comprehension. During a call into C, the expression is that call."""
    return bool(re.search(r"\S.* for .+ in ", expression)) and expression[:1] in "[({"


def is_collate(path: InputPath, stack: StackCount) -> bool:
    """Whether the sample is in the collate function, or in a function that the collate function calls."""
    site = path.loader.collate_site
    return stack.stage == "collate" or (
        site is not None and stack.file == site.file and stack.function in (site.function, path.loader.collate_name)
    )


def is_torch_picking(stack: StackCount) -> bool:
    """Whether torch's own dataset, loader or sampler was running, without a line of the user's on the stack.

    Code of another library is work on a sample of the dataset, even without a line of the user's.
    """
    return not stack.file and stack.leaf.startswith(TORCH_PICKS)


TEXT_MAKERS = ("json/encoder.py:", "torch/_tensor_str.py:")
LOGS = re.compile(
    r"\b(print|pprint|log|log_dict|add_scalars?|add_histogram|add_image|savefig|set_postfix|info|debug|warning"
    r"|histogram|histc"  # No gradient goes through a histogram, so a script computes it for people to read.
    r"|to_csv|to_json|to_parquet|to_pickle|to_feather|to_excel|savetxt|savez|save_image|imwrite|imsave)\s*\("
    r"|\b(np|numpy)\.save\s*\(|\b(pickle|json)\.dump\s*\("
)


def is_logging(stack: StackCount) -> bool:
    """Whether the sampled code writes or prepares something for people to read. math.log and x.log() do not count."""
    return stack.stage in ("logging", "metrics") or stack.leaf.startswith(TEXT_MAKERS) or asks_to_log(stack)


def asks_to_log(stack: StackCount) -> bool:
    """Whether the sampled expression itself is a call that logs, whatever code this call was running."""
    return bool(LOGS.search(re.sub(r"\b(math|torch|np|numpy)\.log\s*\(|\.log\(\)", "", stack.expression)))


READS = re.compile(r"\.(item|tolist|numpy)\(")
MAKES_TENSORS = re.compile(r"\b(tensor|as_tensor|from_numpy|stack)\b")


def reads_values(stack: StackCount) -> bool:
    """Whether the sampled code reads values out of tensors, or computes with them outside torch (a metric in NumPy)."""
    if is_logging(stack):
        return False
    if stack.stage == "sync":
        return True
    is_read = bool(READS.search(stack.expression)) and not MAKES_TENSORS.search(stack.expression)
    return is_read and stack.stage in ("other", "python", "loss")
