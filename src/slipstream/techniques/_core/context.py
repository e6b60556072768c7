"""The interface through which techniques change a running script. A technique can change arguments of calls, see
modules and optimizers when they first appear, and wrap calls. If a technique fails to change a loader, module or
optimizer, the failure is reported and the script continues."""

from __future__ import annotations

import copy
import inspect
import sys
import time
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.weak import WeakIdKeyDictionary

from slipstream.records import Edit, TechniqueNote
from slipstream.seams.modules import call_slot
from slipstream.seams.modules.outermost import OutermostFinder, is_being_built
from slipstream.seams.patching import Patches, rewrite_arguments
from slipstream.seams.user_code import current_site

LoaderArguments = dict[str, Any]  # Every argument of a DataLoader by name, with defaults filled in
Wrapper = Callable[..., Any]  # Called as wrapper(call, *args, **kwargs) in place of a module's call
_SETTLING_STEPS = 3
FINGERPRINT = "fingerprint"  # The technique id of the fingerprint, which observes a race and changes nothing


class ApplyContext:
    """What one technique works with. All contexts of a trial share their messages and the objects that they have
    found."""

    def __init__(
        self, patches: Patches, complain: Callable[[str, BaseException], None], is_proof: bool = False
    ) -> None:
        self.patches = patches
        self.is_proof = is_proof  # Whether to use the base's random numbers even where that is slower
        self.technique = ""
        self.change_notes: list[TechniqueNote] = []
        self.decline_notes: list[TechniqueNote] = []
        self.edits: list[Edit] = []
        # Functions that return text for the summary line. They are called when the script has ended.
        self.last_words: list[Callable[[], str]] = []
        self._complain = complain
        self._shared = _Shared()

    def named(self, technique: str) -> ApplyContext:
        """Returns a copy of this context with the name of one technique. The technique may report at any time, also
        from a wrapper many steps later."""
        view = copy.copy(self)
        view.technique = technique
        return view

    @property
    def is_racing(self) -> bool:
        """Whether blocks of this trial are compared with blocks of other trials. One-time work may then be done before
        the first block."""
        return self._shared.is_racing

    @is_racing.setter
    def is_racing(self, value: bool) -> None:
        self._shared.is_racing = value

    @property
    def once_ns(self) -> int:
        """Nanoseconds spent so far on one-time work."""
        return self._shared.once_ns

    @contextmanager
    def once(self) -> Iterator[None]:
        """Returns a context for work that a training does only once. The time of this work counts neither in a block
        nor in the start of an epoch."""
        start_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            self._shared.once_ns += time.perf_counter_ns() - start_ns

    # --- reports of a technique -------------------------------------------------------------------------------------

    def changed(self, what: str) -> None:
        """Reports one thing that the technique really changed: "num_workers 0 -> 2 at train.py:31"."""
        note = TechniqueNote(self.technique, what)
        if note not in self.change_notes:
            self.change_notes.append(note)

    def decline(self, why: str) -> None:
        note = TechniqueNote(self.technique, why)
        if note not in self.decline_notes:
            self.decline_notes.append(note)

    @property
    def changes(self) -> list[str]:
        """What the techniques changed, as lines of text."""
        return [str(note) for note in self.change_notes]

    @property
    def declined(self) -> list[str]:
        """What the techniques could not do, as lines of text."""
        return [str(note) for note in self.decline_notes]

    def edit(self, **edit: Any) -> None:
        """Records the change as data, at the script's current line unless `site` is given."""
        site = edit.pop("site", None) or current_site()
        self.edits.append(Edit(technique=self.technique, site=site, **edit))

    # --- hooks ------------------------------------------------------------------------------------------------------

    def on_loader(self, change: Callable[[LoaderArguments], None]) -> None:
        """Calls `change` with the arguments of every DataLoader before the loader is built. `change` edits the
        arguments in place."""
        if not self._shared.loader_changes:
            rewrite_arguments(self.patches, DataLoader, "__init__", "technique.loader", self._rewrite_loader)
        self._shared.loader_changes.append((self.technique, change))

    def on_model(self, change: Callable[[torch.nn.Module], None]) -> None:
        """Calls `change` once for every module that has parameters and that the script itself calls. This happens
        before the first call of the module."""
        if self._shared.finder is None:
            self._shared.finder = OutermostFinder(self._find)
            self._shared.finder.install(self.patches)
            self._follow_updates()
        self._shared.model_changes.append((self.technique, change))

    def on_optimizer(self, change: Callable[[torch.optim.Optimizer], None]) -> None:
        """Calls `change` once for every optimizer, before its first step."""
        if not self._shared.optimizer_changes:
            hook = self.patches.guard("technique.optimizer", self._before_step)
            self.patches.on_close(register_optimizer_step_pre_hook(hook).remove)
        self._shared.optimizer_changes.append((self.technique, change))

    def wrap_call(self, module: torch.nn.Module, wrapper: Wrapper) -> None:
        """Wraps this instance's call. Of several wrappers, the one added last is the outermost."""
        inner = call_slot.content(module)
        reference = weakref.ref(module)

        def call(*args: Any, **kwargs: Any) -> Any:
            if inner is not None:
                return wrapper(inner, *args, **kwargs)
            target: Any = reference()
            return wrapper(target._call_impl, *args, **kwargs)

        place = call_slot.CallSlot(call, inner)
        call_slot.fill(module, place)

        def put_back() -> None:
            target = reference()
            if target is not None:
                call_slot.clear(target, place)

        self.patches.on_close(put_back)

    def is_compiled(self, module: torch.nn.Module) -> bool:
        """Whether the script compiles the module. A wrapper that slipstream put around the call does not count."""
        return call_slot.is_compiled(module)

    # --- internals --------------------------------------------------------------------------------------------------

    def _may_change(self, technique: str) -> bool:
        """Whether the technique may change this process. Only the fingerprint may do so in one of several ranks.
        Recipes are measured with one process, and ranks that do different work would wait for each other forever."""
        count = _num_ranks()
        if count > 1 and technique != FINGERPRINT:
            self.named(technique).decline(f"this is one of {count} ranks, and recipes are measured with one process")
            return False
        return True

    def _try(self, technique: str, change: Callable[[Any], None], thing: Any) -> None:
        before = dict(thing) if isinstance(thing, dict) else None
        try:
            change(thing)
        except Exception as fault:
            if before is not None:
                thing.clear()
                thing.update(before)
            self.named(technique).decline(f"{type(fault).__name__}: {fault}")
            self._complain(f"technique {technique}", fault)

    def _rewrite_loader(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        bound = _LOADER_SIGNATURE.bind(*args, **kwargs)
        given = set(bound.arguments)
        bound.apply_defaults()
        arguments = {name: value for name, value in bound.arguments.items() if name != "self"}
        before = dict(arguments)
        for technique, alter in self._shared.loader_changes:
            if self._may_change(technique):
                self._try(technique, alter, arguments)
        return (args[0],), {n: v for n, v in arguments.items() if n in given or v is not before[n]}

    def _find(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen = self._shared.seen
        if module in seen or next(module.parameters(), None) is None:
            return
        if torch.utils.data.get_worker_info() is not None:
            return  # The module is a transform, not a model.
        if is_backward() or is_being_built(sys._getframe(1)):
            return  # The module is part of a model that is being recomputed, built or tried.
        seen[module] = None
        for technique, change in self._shared.model_changes:
            if self._may_change(technique):
                self._try(technique, change, module)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if optimizer not in self._shared.seen:
            self._shared.seen[optimizer] = None
            for technique, change in self._shared.optimizer_changes:
                if self._may_change(technique):
                    self._try(technique, change, optimizer)

    def _follow_updates(self) -> None:
        """Ends the search for models a few updates after the search began. A new optimizer starts the search again."""
        seen: weakref.WeakSet[Any] = weakref.WeakSet()
        num_updates = 0

        def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            nonlocal num_updates
            finder = self._shared.finder
            assert finder is not None
            if optimizer not in seen:
                seen.add(optimizer)
                num_updates = 0
                finder.search()
            num_updates += 1
            if num_updates == _SETTLING_STEPS:
                finder.settle()

        hook = self.patches.guard("technique.search", after_step)
        self.patches.on_close(register_optimizer_step_post_hook(hook).remove)


class _Shared:
    def __init__(self) -> None:
        self.loader_changes: list[tuple[str, Callable[[LoaderArguments], None]]] = []
        self.model_changes: list[tuple[str, Callable[[torch.nn.Module], None]]] = []
        self.optimizer_changes: list[tuple[str, Callable[[torch.optim.Optimizer], None]]] = []
        # Models and optimizers that were found. They are keyed by identity, because a hash may change.
        self.seen: MutableMapping[Any, None] = WeakIdKeyDictionary()
        self.finder: OutermostFinder | None = None
        self.is_racing = False
        self.once_ns = 0


def _num_ranks() -> int:
    """Returns the size of the process group that the script created, however it was started."""
    group = torch.distributed
    return group.get_world_size() if group.is_available() and group.is_initialized() else 1


def is_backward() -> bool:
    """Whether a backward pass is running in this thread."""
    current = getattr(torch._C, "_current_graph_task_id", None)
    return current is not None and current() != -1


_LOADER_SIGNATURE = inspect.signature(DataLoader.__init__)
