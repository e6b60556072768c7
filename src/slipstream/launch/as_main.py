"""Runs a script in this process exactly as `python train.py ARGS` or `python -m pkg.train ARGS` would run the script.
The interpreter also ends as it would have ended. Of the seams this module uses only the exception that stops a trial.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
import types
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from typing import Any, NoReturn

from slipstream.launch.hide_frames import hide_in_excepthook
from slipstream.launch.private_modules import hide_our_modules
from slipstream.launch.target import is_archive, is_module
from slipstream.records import Ending
from slipstream.seams.stop import StopTrial

_former_mains: list[types.ModuleType] = []  # frames below the script still use them


class LaunchError(Exception):
    """The program could not be found. This is a mistake in the user's command, not a failure of the script."""


def launch(script: Sequence[str], on_end: Callable[[Ending], None]) -> None:
    """Runs the script to its end. An exception of the script propagates unchanged. Callers must not catch the
    exception, so that the interpreter itself prints it and chooses the exit code. If slipstream stopped the script, a
    SystemExit with code 0 propagates. `on_end` is called when the script has ended, before an exception propagates."""
    start_ns = time.perf_counter_ns()

    def end(reason: Any, exit_code: int, message: str = "") -> None:
        on_end(Ending(reason, exit_code, (time.perf_counter_ns() - start_ns) / 1e9, message))

    try:
        _run(list(script))
    except LaunchError:
        raise
    except SystemExit as stop:
        if _comes_of_stopping(stop):
            end("stopped", 0)
            raise SystemExit(0) from None
        code = exit_code_of(stop)
        end("raised" if code else "finished", code, f"SystemExit: {stop.code}" if code else "")
        raise
    except BaseException as error:
        if _comes_of_stopping(error):
            end("stopped", 0)
            raise SystemExit(0) from None
        interrupted = isinstance(error, KeyboardInterrupt)
        message = "" if interrupted else f"{type(error).__name__}: {error}"
        end("interrupted" if interrupted else "raised", 130 if interrupted else 1, message)
        hide_in_excepthook()
        raise
    else:
        end("finished", 0)


def become_python(script: Sequence[str]) -> NoReturn:
    """Replaces this process with plain Python, for SLIPSTREAM_DISABLE=1."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *interpreter_flags(), *script])


def interpreter_flags() -> list[str]:
    """Returns the flags that this interpreter was started with: -O, -u, -X and so on."""
    import subprocess

    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    if getattr(sys.stdout, "write_through", False):
        flags.append("-u")  # sys.flags does not have this flag
    return flags


def exit_code_of(stop: SystemExit) -> int:
    """Returns the exit code that the interpreter derives from a SystemExit."""
    if stop.code is None:
        return 0
    return stop.code & 0xFF if isinstance(stop.code, int) else 1


def _run(script: list[str]) -> None:
    main = _new_main()
    sys.orig_argv = [sys.executable, *script]
    if is_module(script):
        _run_module(script[1], script[2:])
    elif is_archive(script[0]):
        sys.argv = list(script)
        _prepare_imports(_absolute(script[0]))
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
    else:
        _run_file(main, script)


def _new_main() -> types.ModuleType:
    """Makes a `__main__` module with the same names in the same order as the interpreter's."""
    main = types.ModuleType("__main__")
    if sys.version_info < (3, 14):
        vars(main).update(__annotations__={})
    vars(main).update(__builtins__=sys.modules["builtins"])
    _former_mains.append(sys.modules["__main__"])
    sys.modules["__main__"] = main
    return main


def _run_file(main: types.ModuleType, script: list[str]) -> None:
    path = _absolute(script[0])
    sys.argv = list(script)
    _prepare_imports(os.path.dirname(os.path.realpath(path)))
    loader = SourceFileLoader("__main__", path)
    main.__dict__.update(__loader__=loader, __file__=path, __cached__=None)
    with open(path, "rb") as file:
        source = file.read()
    # The code is compiled from bytes, so that the file's own encoding line is used. Like python, this writes no
    # bytecode.
    code = compile(source, path, "exec", dont_inherit=True)
    del source, file
    exec(code, main.__dict__)


def _run_module(name: str, args: list[str]) -> None:
    sys.argv = ["-m", *args]  # seen by the packages that are imported first; runpy then sets the file's path
    _prepare_imports(os.getcwd())
    try:
        runpy._run_module_as_main(name)  # type: ignore[attr-defined]
    except SystemExit as stop:
        if _is_runpys_own(stop):
            raise LaunchError(str(stop.code).partition(": ")[2]) from None
        raise


def _is_runpys_own(stop: SystemExit) -> bool:
    """Whether runpy raised the exception because the module does not exist. If not, the module raised the
    exception."""
    trace, depth = stop.__traceback__, 0
    while trace is not None and trace.tb_next is not None:
        trace, depth = trace.tb_next, depth + 1
    return depth == 1 and trace is not None and trace.tb_frame.f_code.co_name == "_run_module_as_main"


def _prepare_imports(path: str) -> None:
    """Makes the script's imports find the same modules as under plain Python."""
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        hide_our_modules(None)  # with -P or -I python adds no directory
        return
    sys.path[0] = path
    hide_our_modules(path)


def _absolute(path: str) -> str:
    """Makes a path absolute as python does for `__file__`: joined, not normalised."""
    return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)


def _comes_of_stopping(error: BaseException) -> bool:
    """Whether the exception is a StopTrial, or one that a framework raised after it caught a StopTrial."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        if isinstance(link, StopTrial):
            return True
        seen.add(id(link))
        link = link.__cause__ or link.__context__
    return False
