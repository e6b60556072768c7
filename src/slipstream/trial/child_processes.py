"""Processes that the script starts, by spawn, forkserver or fork: each is boarded before the script's code runs in it.
Never breaks a child: whatever fails here, the child goes on unwatched."""

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

# Runs in the child while it unpickles its preparation data, before it imports the script. As text, so that a child
# that cannot import slipstream is not hurt.
_BOARDING = """
try:
    from {module} import {name} as board
    board({argument!r})
except BaseException:
    pass
"""


class ChildSettings:
    """Unpickling it boards the process."""

    def __init__(self, module: str, name: str, argument: bytes) -> None:
        self._code = _BOARDING.format(module=module, name=name, argument=argument)

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (self._code, {})


def follow(ride: ScriptRun) -> None:
    """From now on every process that the script starts is boarded, until the ride is left."""
    passport = msgspec.json.encode((ride.settings, recipe_protocol.name_of(ride.fit)))
    boarding = ChildSettings(__name__, board_spawned.__name__, passport)
    patches = Patches(ride.complain, lambda: False)
    patches.on_close(_follow_forks(ride))
    hide_in_module(ride.arrivals, patches)

    def arrived(module: ModuleType) -> None:
        original = module.get_preparation_data

        def get_preparation_data(name: str) -> dict[str, Any]:
            data: dict[str, Any] = original(name)
            data[_KEY] = boarding
            return data

        patches.replace(module, "get_preparation_data", get_preparation_data)

    ride.arrivals.when_imported("multiprocessing.spawn", arrived)
    ride.arrivals.when_imported("multiprocessing.util", lambda util: util.register_after_fork(ride, _leave_at_end))
    _followed.append((ride, patches))


def unfollow(ride: ScriptRun) -> None:
    for item in [item for item in _followed if item[0] is ride]:
        item[1].close()
        _followed.remove(item)


def board_spawned(passport: bytes) -> None:
    """In a spawned child, before the script is imported there. Its own children are followed too."""
    from slipstream.trial import shutdown
    from slipstream.trial.lifecycle import ScriptRun, TrialSettings

    settings, fitting = msgspec.json.decode(passport, type=tuple[TrialSettings, str])
    ride = ScriptRun(settings, recipe_protocol.find(fitting))
    ride.board("child")
    follow(ride)
    _leave_at_end(ride)
    shutdown.limit_stopping(ride)


def _leave_at_end(ride: ScriptRun) -> None:
    """In a child of multiprocessing. A forked one forgets all finalizers when it starts and calls this afterwards."""
    from multiprocessing import util

    from slipstream.trial import shutdown

    start_ns = time.perf_counter_ns()

    def leave() -> None:
        if ride.recorder.role == "child":  # a loader's worker has its own way out
            reason: Literal["stopped", "finished"] = "stopped" if shutdown.has_stopped() else "finished"
            ride.leave(Ending(reason, 0, (time.perf_counter_ns() - start_ns) / 1e9))

    util.Finalize(None, leave, exitpriority=-100)


def _follow_forks(ride: ScriptRun) -> Callable[[], None]:
    """Returns how to stop it."""
    global _is_registered
    if not _is_registered:
        os.register_at_fork(after_in_child=_after_fork)  # the system has no way to take this back
        _is_registered = True
    _fork_listeners.append(ride.board_child)
    return lambda: _fork_listeners.remove(ride.board_child)


def _after_fork() -> None:
    for board in list(_fork_listeners):
        try:
            board()
        except Exception:
            _fork_listeners.clear()
