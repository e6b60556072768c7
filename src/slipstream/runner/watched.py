"""The ride of `run`: in this process, watch only. Adds one line on stderr at the very end, and nothing else."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys

from slipstream.records import Ending
from slipstream.runner.launch import launch
from slipstream.runner.ride import RideSettings, board
from slipstream.runner.traces import hide_in_module
from slipstream.seams.patch import Patches


def run_watched(script: list[str]) -> None:
    process = os.getpid()
    ride = board(RideSettings(mode="run", num_steps=0, seconds=0.0, script=script))

    def say() -> None:
        if os.getpid() != process:
            return  # a child that the script forked
        with contextlib.suppress(Exception):
            if line := ride.summary_line():
                print(line, file=sys.__stderr__, flush=True)

    patches = Patches(ride.complain, lambda: False)
    hide_in_module(ride.arrivals, patches)

    def leave(ending: Ending) -> None:
        patches.close()
        ride.leave(ending)

    atexit.register(say)  # the first registered runs last: after everything that the script says
    launch(script, leave)
