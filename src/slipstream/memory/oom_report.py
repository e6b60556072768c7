"""Reports what filled the memory when it ran out: the bytes that are alive while the exception exists, by kind, by
module and by the user's line. On the CPU, temporary memory of the backward pass is not included."""

from __future__ import annotations

import gc
import inspect
import re
from collections import Counter, defaultdict
from types import CodeType, TracebackType

import torch
from torch import nn

from slipstream.memory.address_names import AddressNames
from slipstream.memory.allocations import Name
from slipstream.memory.autograd_graph import Graph
from slipstream.memory.device import counts_everything, device_of
from slipstream.observe.anatomy.modules import ModuleEntry, list_modules
from slipstream.records import LineBytes, ModuleBytes, Remains, Site
from slipstream.sandbox.memory_limit import read_mapped
from slipstream.seams.user_code import is_user_code, make_site

Blocks = dict[int, Name]  # address to name


def read_remains(error: BaseException) -> Remains:
    """Reads what is alive. No reference is kept, so the memory is freed together with the exception."""
    things = gc.get_objects()
    models = [thing for thing in things if issubclass(type(thing), nn.Module)]
    optimizers = [thing for thing in things if issubclass(type(thing), torch.optim.Optimizer)]
    tensors = [thing for thing in things if issubclass(type(thing), torch.Tensor)]
    del things
    entries, device, trace = list_modules(models), device_of(models), _trace(error)
    blocks = _blocks(AddressNames(entries, optimizers, device), tensors, trace)
    kinds, modules = _sums(blocks)
    if counts_everything(device):
        kinds["other"] += max(0, int(torch.get_device_module(device).memory_allocated(device)) - kinds.total())
    return Remains(
        kinds=dict(kinds),
        modules=[ModuleBytes(entries[at].path, entries[at].class_name, dict(held)) for at, held in modules.items()],
        lines=_lines(entries, modules),
        site=_last_line(trace),
        module=_innermost(trace, entries),
        held_bytes=_held_bytes(device),
        has_batch_norm=any(isinstance(model, nn.modules.batchnorm._BatchNorm) for model in models),
    )


def _held_bytes(device: str) -> int:
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[1])
    return read_mapped().data if device == "cpu" else 0


def _blocks(names: AddressNames, tensors: list[torch.Tensor], trace: list[TracebackType]) -> Blocks:
    """Returns the storages by address. An address keeps its first name. Only the batch is renamed from an activation to
    an input, because a graph may have saved the batch."""
    graph = Graph((tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None), names.owners)
    found = [*names.weights(), *names.optimizer_state(), *names.gradients()]
    for tensor, module in graph.saved():
        found += names.name(tensor, "activations", module)
    for tensor in tensors:
        found += names.name(tensor, "other" if tensor.grad_fn is None else "activations", -1)
    blocks: Blocks = {}
    for name in found:
        blocks.setdefault(name.address, name)
    held = [thing for link in trace for thing in link.tb_frame.f_locals.values() if isinstance(thing, torch.Tensor)]
    for name in names.inputs([tensor for tensor in held if tensor.is_leaf and not tensor.requires_grad]):
        if name.address in blocks and blocks[name.address].kind == "activations":
            blocks[name.address] = name
    return blocks


def _sums(blocks: Blocks) -> tuple[Counter[str], dict[int, Counter[str]]]:
    kinds: Counter[str] = Counter()
    modules: dict[int, Counter[str]] = defaultdict(Counter)
    for block in blocks.values():
        kinds[block.kind] += block.num_bytes
        if block.module >= 0:
            modules[block.module][block.kind] += block.num_bytes
    return kinds, modules


def _lines(entries: list[ModuleEntry], modules: dict[int, Counter[str]]) -> list[LineBytes]:
    """Returns the lines that hold activations. The line that creates a weight does not matter to the user."""
    known = {entry.path: entry.module for entry in entries}
    lines: Counter[Site] = Counter()
    for index, held in modules.items():
        if held["activations"] and (site := _caller(entries[index].path, known)) is not None:
            lines[site] += held["activations"]
    return [LineBytes(site, {"activations": size}) for site, size in lines.most_common()]


def _caller(path: str, known: dict[str, nn.Module]) -> Site | None:
    """Returns the line that calls a module, in the `forward` of the nearest enclosing class of the user's code."""
    parts = path.split(".") if path else []
    for depth in range(len(parts), -1, -1):
        module = known.get(".".join(parts[:depth]))
        code = getattr(type(module).forward, "__code__", None) if module is not None else None
        if code is not None and is_user_code(code.co_filename):
            return _naming(code, parts[depth] if depth < len(parts) else "")
    return None


def _naming(code: CodeType, name: str) -> Site:
    """Returns the first line that contains `self.name`, or the function's own line."""
    try:
        texts, first = inspect.getsourcelines(code)
    except OSError:
        texts, first = [], code.co_firstlineno
    pattern = re.compile(rf"\bself\.{re.escape(name)}\b") if name else None
    named = [first + at for at, text in enumerate(texts) if pattern is not None and pattern.search(text)]
    return make_site(code.co_filename, named[0] if named else first, code.co_name)


def _trace(error: BaseException) -> list[TracebackType]:
    links, link = [], error.__traceback__
    while link is not None:
        links.append(link)
        link = link.tb_next
    return links


def _last_line(trace: list[TracebackType]) -> Site | None:
    for link in reversed(trace):
        code = link.tb_frame.f_code
        if is_user_code(code.co_filename):
            return make_site(code.co_filename, link.tb_lineno, code.co_name)
    return None


def _innermost(trace: list[TracebackType], entries: list[ModuleEntry]) -> str:
    """Returns the module that was running, with its class, or "" if there is none or it is the model itself."""
    paths = {id(entry.module): f"{entry.path} ({entry.class_name})" for entry in entries if entry.path}
    called = (link.tb_frame.f_locals.get("self") for link in reversed(trace))
    return next((paths[id(one)] for one in called if id(one) in paths), "")
