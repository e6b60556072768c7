"""Writes a script that calls one function, for trials to run.

Trials are new processes, so they cannot use a function object of this process. The script imports the function if the
function is in a module. In a notebook the script contains the statements that the function needs. Other functions are
refused.
"""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from slipstream.store.safe_files import open_directory, write_file
from slipstream.workflows.notebook_cells import needed_source

_OPENING = '''"""Written by slipstream.tune({name}). Every trial runs this file. Each call overwrites it."""

import sys

for _folder in {folders!r}:
    if _folder not in sys.path:
        sys.path.append(_folder)
'''
_IMPORTED = """
from importlib import import_module

{name} = import_module({module!r}).{name}
"""
_CALL = """
if __name__ == "__main__":
    {name}({arguments})
"""
_PICKLED = "*__import__('pickle').loads({args!r}), **__import__('pickle').loads({kwargs!r})"


def write_script(function: Callable[..., Any], folder: Path) -> Path:
    """Writes the script to `folder` and returns its path. The file has the name of the function.

    The folder is created if needed. Raises ValueError for a function that another process cannot find. The message says
    what to do.
    """
    function, arguments = _unwrapped(function)
    name = _name_of(function)
    source = _OPENING.format(name=name, folders=_folders())
    source += _definition(function, name) + _CALL.format(name=name, arguments=arguments)
    path = open_directory(folder) / f"{name}.py"
    write_file(path, source.encode())
    return path


def _folders() -> list[str]:
    """Returns the folders of this process's module path that a new process of the same interpreter does not have."""
    found = [Path.cwd(), *(Path(entry).resolve() for entry in sys.path if Path(entry or ".").is_dir())]
    own = (Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve())
    return list(dict.fromkeys(str(path) for path in found if not any(path.is_relative_to(root) for root in own)))


def _unwrapped(function: Any) -> tuple[Any, str]:
    """Returns the function and the source text of its arguments, which users give as in
    functools.partial(train, epochs=3)."""
    if not isinstance(function, functools.partial):
        return function, ""
    try:
        args, kwargs = pickle.dumps(function.args), pickle.dumps(function.keywords)
    except Exception as error:
        raise ValueError(
            f"The arguments of the functools.partial cannot be sent to another process ({error}). Create them in the"
            " function."
        ) from None
    return function.func, _PICKLED.format(args=args, kwargs=kwargs)


def _name_of(function: Any) -> str:
    name, qualified = getattr(function, "__name__", ""), getattr(function, "__qualname__", "")
    if getattr(function, "__self__", None) is not None:
        raise ValueError(
            f"{qualified} is a method of an object. The trials are new processes, which do not have the object. Give a"
            " function that creates the object and calls the method."
        )
    if not name.isidentifier() or qualified != name:
        raise ValueError(
            f"{qualified or function!r} cannot be found by name from another process. Give a function that is defined"
            " at the top of a module or of a notebook cell (arguments: functools.partial(train, epochs=3))."
        )
    return name


def _definition(function: Any, name: str) -> str:
    module = function.__module__
    main_file = getattr(sys.modules.get("__main__"), "__file__", None)
    if module != "__main__":
        return _IMPORTED.format(name=name, module=module)
    cells = _cells()
    if cells is not None:
        return f"\n{needed_source(cells, name)}"
    if main_file is None:
        raise ValueError(
            f"{name} was typed into an interpreter, so other processes cannot find it. Put the function into a file."
        )
    return f"\nsys.path.insert(1, {str(Path(main_file).resolve().parent)!r})\n" + _IMPORTED.format(
        name=name, module=Path(main_file).stem
    )


def _cells() -> Sequence[str] | None:
    """Returns the cells that were run in this notebook so far, or None outside of a notebook."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_ipython() if get_ipython is not None else None
    return [str(cell) for cell in shell.user_ns.get("In", [])] if shell is not None else None
