"""The process that runs the script for `check` and for a race: makes its view of the file system, boards, launches.
Started with a ticket by supervise or by the relay; what it learns goes to the spool, or over the baton's socket."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import signal
import sys
import threading
from pathlib import Path

import msgspec

from slipstream.launch.as_main import LaunchError, interpreter_flags, launch
from slipstream.launch.target import is_module, protected_folders
from slipstream.records import Ending, Told
from slipstream.sandbox import downloads, mounts, offline_trackers, overlay, overlay_rename, redirect_writes
from slipstream.seams.import_hooks import ImportHooks
from slipstream.seams.user_code import claim
from slipstream.trial import child_processes, shutdown
from slipstream.trial.forked import ForkSafety, refuse
from slipstream.trial.lifecycle import TrialSettings, board
from slipstream.trial.recipe_protocol import ApplyRecipe
from slipstream.wire.spool import Spool

ENTRY = str(Path(__file__).with_name("__main__.py"))
REFUSED = "refused"  # files in the spool directory, each with a sentence
UNCOVERED = "uncovered"
EXIT_REFUSED = 2
EXIT_UNCOVERED = 70
_LAUNCHERS = {"torch", "accelerate", "lightning", "deepspeed", "transformers"}


class Ticket(msgspec.Struct, frozen=True):
    settings: TrialSettings
    scratch: str  # a directory for what trackers and redirected writers leave; gone after the ride
    plan: overlay.OverlayPlan | None = None  # None: no overlay, redirect
    count_loopback: bool = False  # tests: a server on this machine is a remote one


def command(ticket: Ticket, entry: str = ENTRY) -> list[str]:
    """What starts such a process, with this interpreter and its flags. The ticket is left in the spool."""
    return [sys.executable, *interpreter_flags(), entry, str(write_ticket(ticket))]


def write_ticket(ticket: Ticket) -> Path:
    path = Path(ticket.settings.spool) / "ticket.json"
    path.write_bytes(msgspec.json.encode(ticket))
    return path


def main(ticket_path: str, fit: ApplyRecipe | None = None, fairness: ForkSafety | None = None) -> None:
    """`fairness`: of a process that had imported torch before."""
    ticket = msgspec.json.decode(Path(ticket_path).read_bytes(), type=Ticket)
    is_racing = ticket.settings.mode == "race"
    if is_racing:
        # A group of its own: the terminal's Ctrl-C is for the relay, and if that is killed, the system itself continues
        # and hangs up the group's stopped processes.
        os.setpgid(0, 0)
    if sys.platform == "linux":
        mounts.die_with_parent(signal.SIGKILL if is_racing else signal.SIGTERM)  # a stopped process hears only that
    if fairness is not None and (obstacle := fairness.obstacle_at_first(ticket.settings.script)):
        refuse(ticket.settings.spool, obstacle)
    spool = Path(ticket.settings.spool)
    is_covered = _enter_view(ticket, spool)
    if not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
        sys.path.insert(0, "")  # launch puts the script's directory there
    _claim_module(ticket.settings.script)
    ride = board(ticket.settings, fit, fairness)
    offline_trackers.silence(ride.arrivals, ticket.scratch)
    if is_covered and not is_racing:
        downloads.note_connections(spool, count_loopback=ticket.count_loopback)
    elif not is_covered:
        _redirect(ticket, ride.arrivals)
    child_processes.follow(ride)
    shutdown.limit_stopping(ride)

    def leave(ending: Ending) -> None:
        child_processes.unfollow(ride)
        ending = ride.excuse(ending)
        ride.leave(ending)
        if ending.reason == "stopped":
            _end_at_once(is_racing)

    try:
        launch(ticket.settings.script, leave)
    except LaunchError as error:
        (spool / REFUSED).write_text(str(error))
        sys.exit(EXIT_REFUSED)


def _end_at_once(is_racing: bool) -> None:
    """The script has cleaned up after itself; taking the interpreter down would cost another second. The relay ends
    what is left of a rider's processes itself; elsewhere the script's own exit handlers do."""
    if not is_racing:
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)


def _claim_module(script: list[str]) -> None:
    """A package that the user runs with -m is theirs, wherever it is installed; a launcher is not."""
    if not is_module(script):
        return
    top = script[1].partition(".")[0]
    if top not in _LAUNCHERS:
        with contextlib.suppress(Exception):  # finding a top-level package runs none of its code
            spec = importlib.util.find_spec(top)
            for folder in (spec and spec.submodule_search_locations) or []:
                claim(folder)


def _enter_view(ticket: Ticket, spool: Path) -> bool:
    """Whether the working directory is covered. What else is not covered is said in a note."""
    if ticket.plan is None:
        return False
    cwd = os.getcwd()
    try:
        uncovered = overlay.enter(ticket.plan)
    except OSError as error:  # half a view is none: the parent starts another rider without
        (spool / UNCOVERED).write_text(str(error))
        os._exit(EXIT_UNCOVERED)
    if uncovered or ticket.plan.bare:
        places = ", ".join([*uncovered, *ticket.plan.bare])
        _tell(spool, Told(note=f"What the script writes in {places} itself is real: no overlay was possible there."))
    if ticket.plan.own_user:
        overlay_rename.allow_moving_directories()
    return cwd not in ticket.plan.bare and not any(overlay.is_below(cwd, path) for path in uncovered)


def _redirect(ticket: Ticket, arrivals: ImportHooks) -> None:
    spool = Path(ticket.settings.spool)
    redirect_writes.Redirect(Path(ticket.scratch)).install(arrivals)
    os.environ.setdefault("WANDB_DIR", ticket.scratch)
    own = threading.local()

    def tell(path: str) -> None:
        if not getattr(own, "busy", False):  # opening the spool is an opening too
            own.busy = True
            _tell(spool, Told(written=[path]))
            own.busy = False

    caches = overlay.cache_directories(protected_folders(Path.cwd(), ticket.settings.script))
    redirect_writes.list_openings(tell, [ticket.scratch, ticket.settings.spool, *caches])


def _tell(spool: Path, message: Told) -> None:
    sink = Spool(spool)
    sink.write(message)
    sink.close()
