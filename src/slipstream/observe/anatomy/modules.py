"""Lists the modules that may get hooks during the observed step, and their names. No hook is put inside a compiled
callable, nor on a module that would leave its fast path because of the hook."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

# In evaluation mode these run one fused kernel, but only if neither they nor their children have hooks.
_HOOK_SENSITIVE = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)


class ModuleEntry:
    """One module of the script and its path."""

    __slots__ = ("is_root", "module", "path")

    def __init__(self, path: str, module: nn.Module, is_root: bool) -> None:
        self.path = path
        self.module = module
        self.is_root = is_root

    @property
    def class_name(self) -> str:
        return type(self.module).__name__


def list_modules(models: list[nn.Module]) -> list[ModuleEntry]:
    """Returns every module that may get hooks once, parents before children. If several models train, each path begins
    with the class of its model. Beside a model, paths inside a module without parameters, such as a loss, begin with
    the class of that module."""
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
    """Returns the models that are not parts of other models. The script may have called both a model and a part of
    it."""
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
    """Whether neither this module nor anything inside it may get a hook."""
    if isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_orig_mod"):
        return True
    if isinstance(module, _HOOK_SENSITIVE) and not module.training:
        return True
    return _is_compiled(getattr(module, "_compiled_call_impl", None)) or _is_compiled(getattr(module, "forward", None))


def _is_compiled(function: Any) -> bool:
    """Whether the function is compiled. Follows `__wrapped__`, because our own seam may wrap the compiled function."""
    for _ in range(4):
        if function is None:
            return False
        if getattr(function, "_torchdynamo_orig_callable", None) is not None:
            return True
        function = getattr(function, "__wrapped__", None)
    return False
