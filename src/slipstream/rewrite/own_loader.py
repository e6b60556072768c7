"""Replaces torch's DataLoader by slipstream.DataLoader in one call.

The file gets `import slipstream`, and the call gets the full name. The name DataLoader keeps its meaning, because other
calls, annotations and type checks may use it.
"""

from __future__ import annotations

from typing import Final

import libcst as cst

from slipstream.rewrite.errors import ByHandError
from slipstream.rewrite.names import ScopeNames
from slipstream.rewrite.source import SourceText, Splice
from slipstream.rewrite.statements import import_module

OURS: Final = "slipstream.DataLoader"
_TORCHS: Final = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")


def use_own_loader(source: SourceText, names: ScopeNames, call: cst.Call) -> list[Splice]:
    meaning = names.imported(call.func)
    if meaning == OURS:
        return []
    name = source.code(call.func)
    if meaning not in _TORCHS:
        raise ByHandError(f"{name} is not torch's DataLoader itself: make it use, or derive it from, {OURS}")
    return [*import_module(source, names, "slipstream"), Splice(*source.span(call.func), OURS)]
