"""Which modules may be watched during the observed step, and what they are called. A compiled callable never gets a
hook inside, nor does a module whose fast path would see the hook and step aside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

# In evaluation these run one fused kernel, unless anything is hooked to them or below: then they compute otherwise.
_SHY = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)


class ModuleEntry:
    """One module of the script under its path."""

    __slots__ = ("is_root", "module", "path")

    def __init__(self, path: str, module: nn.Module, is_root: bool) -> None:
        self.path = path
        self.module = module
        self.is_root = is_root

    @property
    def class_name(self) -> str:
        return type(self.module).__name__


def list_modules(models: list[nn.Module]) -> list[ModuleEntry]:
    """Every module once, parents before children. Where several models train, a path begins with the model's class;
    so it does below a loss, which is a module too but none that anyone calls the model."""
    entries: list[ModuleEntry] = []
    seen: set[int] = set()
    roots = _drop_inner(models)
    names = [type(root).__name__ for root in roots]
    num_trained = sum(_has_parameters(root) for root in roots)
    for index, root in enumerate(roots):
        is_model = _has_parameters(root)
        prefix = "" if (is_model and num_trained == 1) or len(roots) == 1 else names[index]
        if prefix and names.count(prefix) > 1:
            prefix = f"{prefix}[{index}]"
        for path, module in _descend(root, prefix):
            if id(module) not in seen:
                seen.add(id(module))
                entries.append(ModuleEntry(path, module, is_root=module is root and is_model))
    return entries


def _drop_inner(models: list[nn.Module]) -> list[nn.Module]:
    """Without modules that are parts of others: the script called them on their own as well."""
    inner = {id(child) for model in models for child in model.modules() if child is not model}
    return [model for model in models if id(model) not in inner]


def _has_parameters(model: nn.Module) -> bool:
    return next(model.parameters(), None) is not None


def _descend(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    if is_sealed(module):
        return
    yield path, module
    for name, child in module.named_children():
        yield from _descend(child, f"{path}.{name}" if path else name)


def is_sealed(module: nn.Module) -> bool:
    """Nothing of ours may stand in or on this module."""
    if isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_orig_mod"):
        return True
    if isinstance(module, _SHY) and not module.training:
        return True
    return _is_compiled(getattr(module, "_compiled_call_impl", None)) or _is_compiled(getattr(module, "forward", None))


def _is_compiled(function: Any) -> bool:
    """Looks through our own seam, which keeps what it covers as __wrapped__."""
    for _ in range(4):
        if function is None:
            return False
        if getattr(function, "_torchdynamo_orig_callable", None) is not None:
            return True
        function = getattr(function, "__wrapped__", None)
    return False
