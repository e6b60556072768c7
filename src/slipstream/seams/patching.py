"""Patches attributes and restores them. A passage is a wrapper that calls callbacks before and after the original. It
calls the original exactly once, unless the first callback returns a substitute or raises StopIteration. If a callback
raises another exception, the passage is disabled and the fault is reported, and the script continues. Closing the
patches restores the original attributes, except those that other code has patched since."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import ExitStack
from types import CodeType
from typing import Any, Final, TypeVar

Before = Callable[[tuple[Any, ...], dict[str, Any]], Any]
After = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]
Abandon = Callable[[Any], None]
Complain = Callable[[str, BaseException], None]
Front = Callable[["Passage"], Callable[..., Any]]
Function = TypeVar("Function", bound=Callable[..., Any])

_ABSENT: Final = object()

# Tests set this to a function that breaks one callback, selected by its name.
tamper: Callable[[str, Callable[..., Any]], Callable[..., Any]] | None = None


def without_stack_level(function: Function) -> Function:
    """Makes `warnings.warn(..., stacklevel=2)` in the original name the line that calls the original, and not the
    wrapper. Python skips frames whose file name contains "importlib" and "_bootstrap". This decorator also changes the
    file name of all functions that are defined inside the decorated function."""
    function.__code__ = _renamed(function.__code__)
    return function


def _renamed(code: CodeType) -> CodeType:
    constants = tuple(_renamed(inner) if isinstance(inner, CodeType) else inner for inner in code.co_consts)
    return code.replace(co_filename=f"{code.co_filename}:importlib_bootstrap", co_consts=constants)


class Substitute:
    """A result that a `before` callback returns instead of a token. The original is then not called, and the caller
    gets `value`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Patches:
    """A group of patches that are undone together, in reverse order."""

    def __init__(self, complain: Complain, is_compiling: Callable[[], bool]) -> None:
        self._undo = ExitStack()
        self.is_compiling = is_compiling
        self.complain = complain
        self.process = os.getpid()  # The process that made the patches. Forked children only inherit them.
        self.callback_names: list[str] = []
        self.leftovers: list[str] = []  # Attributes that other code patched later. They are not restored.

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Sets an attribute until `close` is called."""
        before = vars(owner).get(name, _ABSENT) if hasattr(owner, "__dict__") else _ABSENT
        setattr(owner, name, new)
        self._undo.callback(self._restore, owner, name, new, before)

    def _restore(self, owner: Any, name: str, ours: Any, before: Any) -> None:
        if vars(owner).get(name, _ABSENT) is not ours:
            self.leftovers.append(f"{getattr(owner, '__name__', owner)}.{name}")
            return
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
        assert vars(owner).get(name, _ABSENT) is before

    def around(
        self,
        owner: Any,
        name: str,
        seam: str,
        before: Before | None,
        after: After,
        abandon: Abandon | None = None,
        front: Front | None = None,
    ) -> None:
        """Wraps `owner.name` in a passage. `before` returns a token, which `after` gets. If the original raises,
        `abandon` gets the token instead. Without `before` there is no token, and `abandon` is not called. `front` makes
        a function that is called in place of the passage and may bypass the passage (the fast path)."""
        passage = self.passage(getattr(owner, name), seam, before, after, abandon)
        function = passage.function if front is None else functools.wraps(passage.original)(front(passage))
        self.replace(owner, name, function)
        self._undo.callback(passage.retire)

    def passage(
        self,
        original: Callable[..., Any],
        seam: str,
        before: Before | None,
        after: After,
        abandon: Abandon | None = None,
    ) -> Passage:
        """Makes a passage that the caller installs and removes."""
        after = self.register(f"{seam}.after", after)
        if before is not None:
            before = self.register(f"{seam}.before", before)
        if abandon is not None:
            abandon = self.register(f"{seam}.abandon", abandon)
        return Passage(original, before, after, abandon, seam, self.complain, self.is_compiling)

    def guard(self, name: str, callback: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function for torch's own hook registries. The function calls the callback until the callback raises
        an exception, and catches this exception."""
        callback = self.register(name, callback)
        is_compiling = self.is_compiling
        in_service = True

        def guarded(*args: Any) -> Any:
            nonlocal in_service
            if not is_compiling() and in_service:
                try:
                    return callback(*args)
                except Exception as fault:
                    in_service = False
                    self.complain(name, fault)
            return None

        return guarded

    def on_close(self, callback: Callable[[], Any]) -> None:
        self._undo.callback(callback)

    def close(self) -> None:
        self._undo.close()

    def register(self, name: str, callback: Callable[..., Any]) -> Callable[..., Any]:
        """Registers a callback of this package by name, so that a test can break it."""
        if name not in self.callback_names:
            self.callback_names.append(name)
        return callback if tamper is None else tamper(name, callback)


class Passage:
    """A wrapper of a function that calls callbacks of this package before and after the original."""

    @without_stack_level
    def __init__(
        self,
        original: Callable[..., Any],
        before: Before | None,
        after: After,
        abandon: Abandon | None,
        seam: str,
        complain: Complain,
        is_compiling: Callable[[], bool],
    ) -> None:
        self._in_service = True
        self.original = original
        self._seam = seam
        self._complain = complain

        @functools.wraps(original)
        def after_only(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self._in_service and not is_compiling():
                try:
                    after(None, args, kwargs, result)
                except Exception as fault:
                    self.step_aside(fault)
            return result

        if before is None:
            self.function: Any = after_only
            return

        @functools.wraps(original)
        def passing(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():  # Dynamo evaluates this condition to a constant, so it traces only the original.
                return original(*args, **kwargs)
            if not self._in_service:
                return original(*args, **kwargs)
            try:
                token = before(args, kwargs)
            except Exception as fault:
                if isinstance(fault, StopIteration):  # This is not a fault. The loader was already drained.
                    raise
                self.step_aside(fault)
                return original(*args, **kwargs)
            if type(token) is Substitute:
                return token.value
            try:
                result = original(*args, **kwargs)
            except BaseException:
                self._abandon(abandon, token)
                raise
            try:
                after(token, args, kwargs, result)
            except Exception as fault:
                self.step_aside(fault)
            return result

        self.function = passing

    def retire(self) -> None:
        self._in_service = False

    def _abandon(self, abandon: Abandon | None, token: Any) -> None:
        if abandon is not None:
            try:
                abandon(token)
            except Exception as fault:
                self.step_aside(fault)

    def step_aside(self, fault: BaseException) -> None:
        """Disables the callbacks after a fault. Later calls run only the original."""
        self._in_service = False
        self._complain(self._seam, fault)


Rewrite = Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


@without_stack_level
def rewrite_arguments(patches: Patches, owner: Any, name: str, seam: str, rewrite: Rewrite) -> None:
    """Makes every call of `owner.name` use the arguments that `rewrite` returns. If `rewrite` raises an exception, this
    call and all later calls use their original arguments."""
    original = getattr(owner, name)
    rewrite = patches.guard(f"{seam}.rewrite", rewrite)

    @functools.wraps(original)
    def rewritten(*args: Any, **kwargs: Any) -> Any:
        changed = rewrite(args, kwargs)
        if changed is not None:
            args, kwargs = changed
        return original(*args, **kwargs)

    patches.replace(owner, name, rewritten)
