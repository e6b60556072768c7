"""Sets up slipstream in processes that the script starts by spawn, forkserver or fork, before the script's code runs in
them. If this fails in a child process, the child continues without slipstream."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from slipstream.launch.hide_frames import hide_in_module
from slipstream.records import Ending
from slipstream.seams.patching import Patches
from slipstream.trial import recipe_protocol

if TYPE_CHECKING:
    from slipstream.trial.lifecycle import ScriptRun

_KEY = "slipstream"
_followed: list[tuple[ScriptRun, Patches]] = []
_fork_listeners: list[Callable[[], None]] = []
_is_registered = False

# A spawned child runs this code while it unpickles its preparation data, before it imports the script. The code is
# text, so a child that cannot import slipstream still starts.
_START_CODE = """
try:
    from {module} import {name} as start
    start({argument!r})
except BaseException:
    pass
"""


class ChildSettings:
    """Unpickling this object sets up slipstream in the process."""

    def __init__(self, module: str, name: str, argument: bytes) -> None:
        self._code = _START_CODE.format(module=module, name=name, argument=argument)

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (self._code, {})


def follow(run: ScriptRun) -> None:
    """Sets up slipstream in every process that the script starts from now on, until `unfollow` is called."""
    encoded = msgspec.json.encode((run.settings, recipe_protocol.name_of(run.apply_recipe)))
    child_settings = ChildSettings(__name__, start_spawned.__name__, encoded)
    patches = Patches(run.complain, lambda: False)
    patches.on_close(_follow_forks(run))
    hide_in_module(run.import_hooks, patches)

    def on_import(module: ModuleType) -> None:
        original = module.get_preparation_data

        def get_preparation_data(name: str) -> dict[str, Any]:
            data: dict[str, Any] = original(name)
            data[_KEY] = child_settings
            return data

        patches.replace(module, "get_preparation_data", get_preparation_data)

    run.import_hooks.when_imported("multiprocessing.spawn", on_import)
    run.import_hooks.when_imported("multiprocessing.util", lambda util: util.register_after_fork(run, _leave_at_end))
    _followed.append((run, patches))


def unfollow(run: ScriptRun) -> None:
    for item in [item for item in _followed if item[0] is run]:
        item[1].close()
        _followed.remove(item)


def start_spawned(encoded: bytes) -> None:
    """Sets up slipstream in a spawned child, before the script is imported there, and in the child's own children."""
    from slipstream.trial import exit_deadline
    from slipstream.trial.lifecycle import ScriptRun, TrialSettings

    settings, function_name = msgspec.json.decode(encoded, type=tuple[TrialSettings, str])
    run = ScriptRun(settings, recipe_protocol.find(function_name))
    run.start("child")
    follow(run)
    _leave_at_end(run)
    exit_deadline.limit_stopping(run)


def _leave_at_end(run: ScriptRun) -> None:
    """Registers a finalizer in a child that multiprocessing started. A forked child clears all finalizers when it
    starts, and calls this function afterwards."""
    from multiprocessing import util

    from slipstream.trial import exit_deadline

    start_ns = time.perf_counter_ns()

    def leave() -> None:
        if run.recorder.role == "child":  # WorkerSeam closes a loader's worker
            reason: Literal["stopped", "finished"] = "stopped" if exit_deadline.has_stopped() else "finished"
            run.leave(Ending(reason, 0, (time.perf_counter_ns() - start_ns) / 1e9))

    util.Finalize(None, leave, exitpriority=-100)


def _follow_forks(run: ScriptRun) -> Callable[[], None]:
    """Calls `run.start_child` in every child that is forked from now on. Returns a function that ends this."""
    global _is_registered
    if not _is_registered:
        os.register_at_fork(after_in_child=_after_fork)  # Python cannot unregister this function
        _is_registered = True
    _fork_listeners.append(run.start_child)
    return lambda: _fork_listeners.remove(run.start_child)


def _after_fork() -> None:
    for start in list(_fork_listeners):
        try:
            start()
        except Exception:
            _fork_listeners.clear()
