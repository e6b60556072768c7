"""Finds the user's own code on a stack: the innermost frame that is neither in the standard library, nor in an
installed package, nor in slipstream itself."""

from __future__ import annotations

import ast
import itertools
import linecache
import os
import re
import site
import sys
import sysconfig
from types import CodeType, FrameType

from slipstream.records import Site

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_ZOO = os.path.join(OURS, "testing", "zoo") + os.sep
_MAX_DECORATORS = 8  # Largest number of lines with decorators above a `def`
_is_user: dict[str, bool] = {}
_roots: tuple[str, ...] | None = None


def library_roots() -> tuple[str, ...]:
    """Returns the directories whose code is not the user's."""
    global _roots
    if _roots is None:
        paths = sysconfig.get_paths()
        roots = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
        roots.update(site.getsitepackages())
        roots.add(site.getusersitepackages())
        roots.update(path for path in sys.path if _holds_installed_packages(path))
        _roots = tuple(os.path.realpath(root) + os.sep for root in roots) + tuple(root + os.sep for root in roots)
    return _roots


def _holds_installed_packages(path: str) -> bool:
    """Whether an installer filled the directory (pip install --target). Code in such a directory is not the user's."""
    try:
        return bool(path) and any(name.endswith(".dist-info") for name in os.listdir(path))
    except OSError:
        return False


def claim(path: str) -> None:
    """Declares a file, or everything below a directory, to be the user's code, even in a directory of libraries. An
    example is the package in `python -m package.train`."""
    _claimed.append(path)
    _is_user.clear()


_claimed: list[str] = []
_COMPREHENSIONS = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")


def is_user_code(filename: str) -> bool:
    known = _is_user.get(filename)
    if known is None:
        known = _is_user[filename] = _judge(filename)
    return known


def _judge(filename: str) -> bool:
    if filename.startswith("<"):
        # Code that is run by `exec`, and notebook cells, are the user's code. Frozen modules, generated code and the
        # command with which multiprocessing starts a child are not the user's.
        is_text = filename == "<stdin>" or (filename == "<string>" and not _is_started_by_multiprocessing())
        return is_text or filename.startswith("<ipython-input")
    path = os.path.abspath(filename)
    if any(path == claimed or path.startswith(claimed.rstrip(os.sep) + os.sep) for claimed in _claimed):
        return True
    if path.startswith(OURS):
        return path.startswith(_ZOO)
    return not path.startswith(library_roots()) and not os.path.realpath(path).startswith(library_roots())


def _is_started_by_multiprocessing() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def is_user_frame(frame: FrameType) -> bool:
    """Whether the frame is the user's and has a source line. A generated function, such as a dataclass's `__init__`,
    has no line to show, so it does not count if a file calls it. The line of its caller is shown instead."""
    code, caller = frame.f_code, frame.f_back
    if not is_user_code(code.co_filename):
        return False
    if code.co_filename != "<string>" or code.co_name == "<module>" or caller is None:
        return True
    return caller.f_code.co_filename.startswith("<")


def user_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None and not is_user_frame(frame):
        frame = frame.f_back
    return frame


def site_of(frame: FrameType | None) -> Site | None:
    if frame is None:
        return None
    return make_site(frame.f_code.co_filename, frame.f_lineno or frame.f_code.co_firstlineno, frame.f_code.co_name)


def make_site(filename: str, line: int, function: str = "") -> Site:
    path = filename if filename.startswith("<") else os.path.abspath(filename)
    return Site(path, line, linecache.getline(filename, line).strip(), function)


def site_of_code(code: CodeType | None) -> Site | None:
    """Returns the site where a function is defined, or None if the function is not the user's."""
    if code is None or not is_user_code(code.co_filename):
        return None
    return make_site(code.co_filename, code.co_firstlineno, code.co_name)


def definition_of(code: CodeType | None) -> Site | None:
    """Returns the site of a function's `def`. `site_of_code` returns the line of the first decorator."""
    first = site_of_code(code)
    if code is None or first is None:
        return None
    sites = (make_site(code.co_filename, first.line + below, code.co_name) for below in range(_MAX_DECORATORS))
    return next((site for site in sites if re.match(r"(async\s+)?def\s", site.text)), first)


def current_sites() -> tuple[Site | None, Site | None]:
    """Returns two lines of the user: the line that calls the model now, and the line that called the function around
    it. A method of a model does not count as the caller of the model, unless a framework called it
    (`validation_step`)."""
    frame = user_frame(sys._getframe(1))
    while frame is not None and _is_method_of_module(frame) and _is_called_by_user(frame):
        frame = user_frame(frame.f_back)
    inside = frame
    while inside is not None and inside.f_code.co_name in _COMPREHENSIONS:
        inside = user_frame(inside.f_back)  # The function around a comprehension such as sum(model(x) for x in loader)
    return site_of(frame), site_of(user_frame(inside.f_back)) if inside is not None else None


def _is_method_of_module(frame: FrameType) -> bool:
    code, torch = frame.f_code, sys.modules.get("torch")
    is_method = torch is not None and code.co_argcount > 0 and code.co_varnames[0] == "self"
    return is_method and isinstance(frame.f_locals.get("self"), torch.nn.Module)  # type: ignore[union-attr]


def _is_called_by_user(frame: FrameType) -> bool:
    return frame.f_back is not None and is_user_code(frame.f_back.f_code.co_filename)


def current_site() -> Site | None:
    """Returns the user's line that is running now. Call this function from a callback of this package."""
    return site_of(user_frame(sys._getframe(1)))


def is_called_directly() -> bool:
    """Whether the user's line calls this package's code directly, without a framework in between."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_code(frame.f_code.co_filename):
        if not os.path.abspath(frame.f_code.co_filename).startswith(OURS):
            return False
        frame = frame.f_back
    return frame is not None


def current_callee() -> str:
    """Returns the name of what the user's current line calls, such as "model" or "self.net". Returns "" if the name
    cannot be read: before Python 3.11, without source code, or if a framework makes the call."""
    frame = user_frame(sys._getframe(1))
    positions = getattr(frame.f_code, "co_positions", None) if frame is not None else None
    if frame is None or positions is None or frame.f_lasti < 0 or not is_called_directly():
        return ""
    line, end_line, column, end_column = next(itertools.islice(positions(), frame.f_lasti // 2, None), (None,) * 4)
    if line is None or end_line is None or column is None or end_column is None:
        return ""
    lines = [text.encode() for text in linecache.getlines(frame.f_code.co_filename)[line - 1 : end_line]]
    if not lines:
        return ""
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    try:
        call = ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    name = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
    return name if all(part.isidentifier() for part in name.split(".")) else ""
