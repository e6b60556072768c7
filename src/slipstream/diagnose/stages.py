"""What a sample of the stack says about the work it was taken in: Python or C, collating or not."""

from __future__ import annotations

import re

from slipstream.diagnose.input_path import InputPath
from slipstream.records import StackCount


def is_python(stack: StackCount) -> bool:
    """Bytecode was running, the user's own or a library's, rather than C that a line called."""
    return not stack.in_call


def is_collate(path: InputPath, stack: StackCount) -> bool:
    """In the collate function, or in one that it calls."""
    site = path.loader.collate_site
    return stack.stage == "collate" or (
        site is not None and stack.file == site.file and stack.function in (site.function, path.loader.collate_name)
    )


LOGS = re.compile(
    r"\b(print|pprint|log|log_dict|add_scalars?|add_histogram|add_image|savefig|set_postfix|info|debug|warning)\s*\("
)


def is_logging_text(text: str) -> bool:
    """The code writes something down for people. math.log and torch.log do not."""
    return bool(LOGS.search(re.sub(r"\b(math|torch|np|numpy)\.log\s*\(", "", text)))
