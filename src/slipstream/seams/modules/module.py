"""The module seam: calls of outermost modules, which the script itself calls. The seam searches for these modules
during the first steps, and at later times on request, and then hooks them. Other modules are not hooked. A hook wraps a
compiled callable from outside and is never inside one."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, MutableMapping
from pathlib import Path
from types import CodeType
from typing import Any

import msgspec
import torch
from torch.utils.weak import WeakIdKeyDictionary

from slipstream.records import Model
from slipstream.seams.batches import count_samples, describe_tensors
from slipstream.seams.data_threads import is_beside
from slipstream.seams.listener import Listener, Token
from slipstream.seams.modules import call_slot
from slipstream.seams.modules.fast_path import CallListener, codes, shorten_call
from slipstream.seams.modules.outermost import is_being_built
from slipstream.seams.patching import Patches
from slipstream.seams.user_code import current_callee, current_site, current_sites

_MAX_HOOKED = 64
_BESIDE = (-1, None)  # The token for a call in a data thread, which is not the script's own call
# Packages whose `_apply` methods convert only parameters, buffers and the states of metrics
_CARRY_SCALARS = {"torch", "torchmetrics", "lightning", "pytorch_lightning", "lightning_fabric"}


class ModuleSeam:
    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._original = torch.nn.Module.__call__
        self._is_searching = False
        self._counter = itertools.count()
        # These dictionaries compare modules by identity, because a torchmetrics metric is a module whose hash changes.
        self._idents: MutableMapping[torch.nn.Module, int] = WeakIdKeyDictionary()
        self._hooked: MutableMapping[torch.nn.Module, Any] = WeakIdKeyDictionary()
        self._untrained: dict[int, Model] = {}  # Models that were first called in an evaluation
        self._is_compiling = False
        # Outermost modules that were found since the last compile
        self._found: MutableMapping[torch.nn.Module, None] = WeakIdKeyDictionary()
        self.is_pulse = True  # Whether the script may be stopped at calls of modules, because it has no optimizer steps
        self.call_listener: CallListener | None = None
        self.models: list[weakref.ref[torch.nn.Module]] = []

    def install(self, patches: Patches) -> None:
        self._patches = patches
        self._finder = patches.passage(
            self._original, "module.find", self._before_find, self._after_find, self._abandon_find
        )
        callbacks = (self._before_compile, self._after_compile, self._abandon_compile)
        patches.around(torch, "compile", "compile.function", *callbacks)
        patches.around(torch.nn.Module, "compile", "compile.module", *callbacks)
        patches.on_close(self._leave)
        self.search()

    def observe_calls(self, listener: CallListener | None) -> None:
        """Passes every later call of an outermost module to this listener only. With None, no listener gets them."""
        self.call_listener = listener

    def search(self) -> None:
        """Starts the search, which observes every outermost call."""
        if not self._is_searching:
            self._is_searching = True
            self._set_call(self._finder.function)

    def settle(self) -> None:
        """Ends the search. The modules that were found are hooked; all other modules run unpatched."""
        if not self._is_searching:
            return
        self._is_searching = False
        self._set_call(self._original)
        for module in list(self._found)[:_MAX_HOOKED]:
            if module not in self._hooked:
                self._hook(module)

    def _leave(self) -> None:
        self._is_searching = False
        self._set_call(self._original)
        self._finder.retire()
        for module in list(self._hooked):
            self._unhook(module)

    def _set_call(self, function: Callable[..., Any]) -> None:
        if torch.nn.Module.__call__ is not function:
            torch.nn.Module.__call__ = function  # type: ignore[method-assign]

    # --- the search: one class attribute, restored during every outermost call --------------------------------------

    def _before_find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, Token | None] | None:
        if is_beside():
            return _BESIDE
        self._set_call(self._original)  # Calls inside the outermost call are not observed.
        module = args[0]
        if module in self._hooked or type(module).__module__.startswith("torch.fx"):
            return None
        if self._listener.phase == "input" or self._listener.is_muted:  # In the phase `input`, modules are transforms.
            return None
        if torch._C._is_tracing():  # Reading a tensor's size would be recorded in the graph that the script traces.
            return None
        if is_being_built(sys._getframe(1)):
            return None
        self._listener.pulse()
        ident = self._meet(module, args, kwargs)
        self._found[module] = None
        return ident, self._listener.enter("forward")

    def _after_find(self, token: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if token is _BESIDE:
            return
        self._abandon_find(None)
        if token is not None:
            self._leave_forward(token[1], token[0], args[0], args[1:], kwargs)

    def _abandon_find(self, token: Any) -> None:
        if token is _BESIDE:
            return
        if self._is_searching:
            self._set_call(self._finder.function)
        if token is not None:
            self._listener.abandon(token[1])

    # --- one hooked instance ----------------------------------------------------------------------------------------

    def _hook(self, module: torch.nn.Module) -> None:
        inner = call_slot.content(module)
        reference = weakref.ref(module)

        def call(*args: Any, **kwargs: Any) -> Any:
            target: Any = reference()
            return target._call_impl(*args, **kwargs) if inner is None else inner(*args, **kwargs)

        ident = self._idents[module]

        def after(token: Token | None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            self._leave_forward(token, ident, reference(), args, kwargs)

        passage = self._patches.passage(call, "module.call", self._before_call, after, self._listener.abandon)
        short = shorten_call(passage, self._patches, self._listener, self, reference, inner, ident)
        place = call_slot.CallSlot(short, inner)
        call_slot.fill(module, place)
        self._hooked[module] = (passage, place)

    def _unhook(self, module: torch.nn.Module) -> None:
        passage, place = self._hooked.pop(module)
        passage.retire()
        call_slot.clear(module, place)

    def _before_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Token | None:
        if self._listener.phase == "input" or torch._C._is_tracing():
            return None
        if self.is_pulse:
            self._listener.pulse()
        return self._listener.enter("forward")

    def _leave_forward(
        self, token: Token | None, ident: int, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if token is None:
            return
        if self.call_listener is not None:
            self.call_listener.on_call(module, args, kwargs)
        listener = self._listener
        samples = 0 if listener.counts_samples else count_samples(args if args else kwargs)
        grad = torch.is_grad_enabled()
        if module.training:
            listener.leave(token, "forward", ident, samples, 0, grad, True)
            if ident in self._untrained and grad:
                self._meet_in_training(ident, args, kwargs)
        else:  # Calls in an evaluation are rare enough to look up their line every time.
            site, caller = current_sites()
            where = listener.place(site), listener.place(caller)
            listener.leave(token, "forward", ident, samples, grad=grad, site=where[0], caller=where[1])

    # --- compile: hooks are removed while torch inspects the module, and put around the compiled callable afterwards

    def _before_compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        is_outer = not self._is_compiling
        self._is_compiling = True
        self._is_searching = False
        self._set_call(self._original)
        for module in list(self._hooked):
            self._unhook(module)
        self._found.clear()  # A compiled callable may call these modules from now on, so the search is repeated.
        return is_outer

    def _after_compile(self, is_outer: bool, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if not is_outer:  # Module.compile calls torch.compile, and only the outer call counts.
            return
        self._is_compiling = False
        shield_from_dynamo(self._finder.function.__code__)
        target = args[0] if args else kwargs.get("model")
        if target is not None and not isinstance(target, torch.nn.Module):
            self._listener.note("the script compiles functions: time inside a compiled function is not split further")
        self.search()

    def _abandon_compile(self, is_outer: bool) -> None:
        if is_outer:
            self._is_compiling = False
            self.search()

    # --- facts ------------------------------------------------------------------------------------------------------

    def _meet(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        ident = self._idents.get(module)
        if ident is None:
            ident = self._idents[module] = next(self._counter)
            self.models.append(weakref.ref(module))
            model = read_model(module, ident, args[1:], kwargs)
            if not (module.training and torch.is_grad_enabled()):
                self._untrained[ident] = model
            self._listener.meet(model)
        return ident

    def _meet_in_training(self, ident: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Replaces the facts of a model that was first called in an evaluation, such as a sanity check, by the facts of
        its first call in training."""
        inputs = describe_tensors([list(args), dict(kwargs)])
        facts = {"site": current_site(), "name": current_callee(), "inputs": inputs}
        self._listener.meet(msgspec.structs.replace(self._untrained.pop(ident), **facts))


# Seams and clocks whose frames are on the stack during a step of the script.
_SEAMS = ("batches", "loader", "training", "saving", "transfer", "user_code", "listener", "device_clock", "host_clock")
_FILES = [Path(__file__), *(Path(__file__).parents[1] / f"{seam}.py" for seam in _SEAMS)]


def shield_from_dynamo(passing: CodeType) -> None:
    """Makes dynamo skip the frames of this package, if dynamo is loaded. Dynamo still traces the functions that these
    frames call. The code of passages is skipped by `skip_code` and not by its file. If dynamo inlines a passage into a
    graph, the passage disappears, because it then only calls the original."""
    rules, eval_frame = sys.modules.get("torch._dynamo.trace_rules"), sys.modules.get("torch._dynamo.eval_frame")
    try:
        for package in ("launch", "observe", "records", "trial", "wire"):
            rules.add(f"slipstream.{package}")  # type: ignore[union-attr]
        for file in _FILES:
            rules.SKIP_DIRS.append(str(file))  # type: ignore[union-attr]
        rules._recompile_re()  # type: ignore[union-attr]
        for code in (passing, *codes()):
            eval_frame.skip_code(code)  # type: ignore[union-attr]
    # In another version of torch, the only effect may be an additional graph break.
    except (AttributeError, TypeError):
        return


def read_model(module: torch.nn.Module, ident: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Model:
    parameters = [p for p in module.parameters() if not isinstance(p, torch.nn.parameter.UninitializedParameter)]
    convolutions = [m for m in module.modules() if isinstance(m, torch.nn.modules.conv._ConvNd)]
    weights = [m.weight for m in convolutions if m.weight.dim() == 4 and min(m.weight.shape[1:]) > 1]
    return Model(
        ident=ident,
        class_name=type(getattr(module, "_orig_mod", module)).__name__,
        site=current_site(),
        num_parameters=sum(p.numel() for p in parameters),
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
        dtypes=sorted({str(p.dtype).removeprefix("torch.") for p in parameters}),
        device=str(parameters[0].device) if parameters else "",
        is_compiled=call_slot.is_compiled(module),
        num_modules=sum(1 for _ in module.modules()),
        num_convolutions=len(convolutions),
        is_channels_last=any(w.is_contiguous(memory_format=torch.channels_last) for w in weights),
        inputs=describe_tensors([list(args), dict(kwargs)]),
        name=current_callee(),
        class_module=type(getattr(module, "_orig_mod", module)).__module__,
        num_planar=sum(isinstance(m, (torch.nn.Conv2d, torch.nn.ConvTranspose2d)) for m in convolutions),
        moves_alone=_moves_alone(module),
    )


def _moves_alone(module: torch.nn.Module) -> bool:
    """Whether the whole model can be converted to channels_last by `to()`. The answer is False if a module has an
    `_apply` of its own that may convert other tensors, or if a parameter or buffer has more than four dimensions."""
    carriers = {type(part)._apply.__module__.partition(".")[0] for part in module.modules()}
    owned = itertools.chain(module.parameters(), module.buffers())
    uninitialised = (torch.nn.parameter.UninitializedParameter, torch.nn.parameter.UninitializedBuffer)
    return carriers <= _CARRY_SCALARS and not any(
        tensor.dim() > 4 for tensor in owned if not isinstance(tensor, uninitialised)
    )
