"""What the user's functions behind a dataset use and do outside of the dataset: the global and enclosed variables that
they read, and the calls that print or write.

The search starts at `__getitem__` and the transforms. It follows every name in their code that may be a function or a
method of the user's own files. The functions' bytecode is examined, and none of them is called. Functions of installed
packages are not examined."""

from __future__ import annotations

import dis
import functools
import re
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from slipstream.data.workers.dataset_fingerprint import look, look_closely, walk
from slipstream.seams.rng_state import is_generator
from slipstream.seams.user_code import is_user_code

_ENTRIES = ("__getitem__", "__call__", "forward", "__getattr__")  # Python or torch calls these; no code names them
_MOST = 256  # maximum number of functions that are examined
_WRAPPERS: tuple[Any, ...] = (
    *(property, classmethod, staticmethod, functools.partial),
    *(functools.cached_property, functools._lru_cache_wrapper),
)
_PARTS = ("fget", "func", "__func__", "__wrapped__")  # where a wrapper holds its function
_LOADS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
# Functions and methods that print, log or write. The list holds no name that usually means something harmless, such as
# `log` or `remove`.
_WRITERS = frozenset(
    (
        *("print", "write", "writelines", "write_text", "write_bytes", "save", "savez", "savez_compressed", "savetxt"),
        *("tofile", "to_csv", "to_parquet", "dump", "imwrite", "imsave", "savefig", "mkdir", "makedirs", "touch"),
        *("unlink", "rename", "symlink_to", "symlink", "rmtree", "copyfile", "debug", "info", "warning", "warn"),
        *("exception", "critical", "system", "Popen", "check_call", "executemany", "commit", "send", "sendall"),
    )
)
_MODE = re.compile(r"[rbt]*[wax+][rbtwax+]*")  # modes of `open` for writing


class _Facts(NamedTuple):
    """What the bytecode of one function shows. Functions inside the function are included."""

    names: frozenset[str]  # all names, of attributes and methods too
    loaded: frozenset[str]  # global variables that are read
    sets_outside: bool  # whether a variable outside the function is set
    writer: str  # the name of a called function that may print or write; "" if there is none


class OutsideState:
    """The variables outside of a dataset that its samples depend on. Build it again when the dataset may have
    changed."""

    def __init__(self, dataset: Any) -> None:
        self._types: dict[type, None] = {}
        self._functions: dict[CodeType, FunctionType] = {}
        self._search(dataset)

    def obstacle(self) -> str:
        """Returns the reason, as a clause, why the functions may have effects outside of the dataset. Returns "" if no
        effect is seen."""
        if len(self._functions) >= _MOST:
            return f"the samples come from more than {_MOST} functions, which are too many to examine"
        for code, function in self._functions.items():
            facts = _facts_of(code)
            name = function.__qualname__.rpartition("<locals>.")[2]
            if facts.sets_outside:
                return f"{name} sets a variable outside the function"
            if facts.writer:
                return f"{name} calls {facts.writer}, which may print or write"
        return ""

    def look(self, depth: int = 2) -> dict[str, Any]:
        """Returns a fingerprint of the variables, without the contents of arrays and lists."""
        return _renamed(look(self._values(), depth + 1))

    def look_closely(self, depth: int = 4, before: dict[str, Any] | None = None) -> dict[str, Any]:
        """Returns a fingerprint that covers the contents of arrays and lists too, up to a limit of size. `before` is an
        earlier fingerprint."""
        earlier = {path.removesuffix(_SUFFIX): token for path, token in (before or {}).items()}
        return _renamed(look_closely(self._values(), depth + 1, earlier))

    def values(self) -> Iterator[Any]:
        """Yields the variables and what they hold, to a small depth."""
        return (value for _, value in walk(self._values(), 3))

    def generators(self) -> Iterator[Any]:
        return (value for value in self.values() if is_generator(value))

    # --- which functions ---------------------------------------------------------------------------------------------

    def _search(self, dataset: Any) -> None:
        """Finds functions until no new one is named. A method is looked up in all types found, because the bytecode
        does not tell which object it is called on."""
        names, num_done = set(_ENTRIES), 0
        self._add(dataset)
        while num_done < _MOST:
            for kind in list(self._types):
                for name in names.intersection(vars(kind)):
                    for function in _functions_in(vars(kind)[name]):
                        self._add_function(function)
            fresh = list(self._functions.values())[num_done:]
            if not fresh:
                return
            num_done += len(fresh)
            for function in fresh:
                names |= _facts_of(function.__code__).names
                for _, value in _outside(function):
                    self._add(value)

    def _add(self, thing: Any) -> None:
        for value in (thing, *(inner for _, inner in walk(thing, 3))):
            if issubclass(type(value), type):
                for function in _functions_in(vars(value).get("__init__")):  # the class is called
                    self._add_function(function)
            for function in _functions_in(value):
                self._add_function(function)
            kinds = value.__mro__ if issubclass(type(value), type) else type(value).__mro__
            self._types.update(dict.fromkeys(kind for kind in kinds if _is_users(kind)))

    def _add_function(self, function: FunctionType) -> None:
        if is_user_code(function.__code__.co_filename):
            self._functions.setdefault(function.__code__, function)

    # --- their variables ---------------------------------------------------------------------------------------------

    def _values(self) -> SimpleNamespace:
        """Returns one object whose attributes are the present values of the variables, by name."""
        found = SimpleNamespace()
        for function in self._functions.values():
            for name, value in _outside(function):
                vars(found)[name] = value
            vars(found).update({f"{function.__qualname__}.{name}": one for name, one in vars(function).items()})
            if function.__defaults__:
                vars(found)[f"{function.__qualname__}.__defaults__"] = function.__defaults__
        for kind in self._types:
            for name, value in list(vars(kind).items()):
                if not name.startswith("__") and not callable(value) and not issubclass(type(value), _WRAPPERS):
                    vars(found)[f"{kind.__name__}.{name}"] = value
        return found


_SUFFIX = " outside"


def _renamed(fingerprint: dict[str, Any]) -> dict[str, Any]:
    """Appends " outside" to each name. A message adds "of the dataset" to it: "x outside of the dataset"."""
    return {path + _SUFFIX: token for path, token in fingerprint.items()}


def _outside(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields the global and enclosed variables that a function reads, with their values. If the function
    reads a module of the user, yields only those variables of the module whose names occur in the function."""
    facts = _facts_of(function.__code__)
    for name in facts.loaded:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        if not issubclass(type(value), ModuleType):  # `isinstance` raises for a proxy of a dead object
            yield name, value
        elif _is_users_module(value):
            for inner in facts.names.intersection(vars(value)):
                if not issubclass(type(vars(value)[inner]), ModuleType):
                    yield f"{name}.{inner}", vars(value)[inner]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # the cell is still empty
            continue


def _functions_in(value: Any) -> Iterator[FunctionType]:
    """Yields the function itself, or the function inside a method, property, partial or decorator."""
    for _ in range(8):  # a wrapper may contain another one
        if issubclass(type(value), FunctionType):
            yield value
        elif issubclass(type(value), MethodType):
            value = value.__func__
            continue
        elif not issubclass(type(value), _WRAPPERS):
            return
        inner = next((part for name in _PARTS if (part := getattr(value, name, None)) is not None), None)
        if inner is None:
            return
        value = inner


def _is_users(kind: type) -> bool:
    name = vars(kind).get("__module__")
    return name == "__main__" or (type(name) is str and _is_users_module(sys.modules.get(name)))


def _is_users_module(module: Any) -> bool:
    file = vars(module).get("__file__") if type(module) is ModuleType else None
    return type(file) is str and is_user_code(file)


@functools.lru_cache(maxsize=4 * _MOST)
def _facts_of(code: CodeType) -> _Facts:
    own = set(code.co_freevars)
    names: set[str] = set()
    loaded: set[str] = set()
    sets_outside, writer = False, ""
    waiting = [code]
    while waiting:
        inner = waiting.pop()
        waiting.extend(constant for constant in inner.co_consts if isinstance(constant, CodeType))
        names.update(inner.co_names)
        opens_to_write = "open" in inner.co_names and any(
            isinstance(constant, str) and _MODE.fullmatch(constant) for constant in inner.co_consts
        )
        writer = writer or ("open" if opens_to_write else "")
        for step in dis.get_instructions(inner):
            if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                sets_outside = True
            elif step.opname in ("STORE_DEREF", "DELETE_DEREF"):
                sets_outside = sets_outside or step.argval in own
            elif step.opname in _LOADS_GLOBAL:
                loaded.add(step.argval)
            if _is_called(step) and step.argval in _WRITERS:
                writer = writer or step.argval
    return _Facts(frozenset(names), frozenset(loaded), sets_outside, writer)


def _is_called(step: dis.Instruction) -> bool:
    """Whether the instruction loads a function by its global name, or a method in order to call it."""
    if step.opname in (*_LOADS_GLOBAL, "LOAD_METHOD"):
        return True
    return step.opname == "LOAD_ATTR" and sys.version_info >= (3, 12) and bool((step.arg or 0) & 1)
