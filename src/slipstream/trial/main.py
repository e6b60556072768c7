"""The process that runs the script for `check` and for a race. It enters its view of the file system, sets up
slipstream and runs the script. `supervise.check` or `supervise.race` starts the process with a ticket. Its results go
to the spool or over the baton's socket."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from importlib.machinery import PathFinder
from pathlib import Path

import msgspec

from slipstream.launch.as_main import LaunchError, interpreter_flags, launch
from slipstream.launch.target import LAUNCHERS, is_module, protected_folders
from slipstream.records import Ending, Told
from slipstream.sandbox import downloads, mounts, network, offline_trackers, overlay, overlay_rename, redirect_writes
from slipstream.sandbox.overlap import is_below
from slipstream.seams.import_hooks import ImportHooks
from slipstream.seams.user_code import claim
from slipstream.trial import child_processes, exit_deadline
from slipstream.trial.forked import ForkSafety, refuse
from slipstream.trial.lifecycle import TrialSettings, start_run
from slipstream.trial.recipe_protocol import ApplyRecipe
from slipstream.wire.spool import Spool

ENTRY = str(Path(__file__).with_name("__main__.py"))
# Files in the spool directory. Each contains a sentence that says why the script did not run.
REFUSED = "refused"
UNCOVERED = "uncovered"
EXIT_REFUSED = 2
EXIT_UNCOVERED = 70


class Ticket(msgspec.Struct, frozen=True):
    """Everything that the process needs to know, written to a file in the spool directory."""

    settings: TrialSettings
    scratch: str  # a directory for files of trackers and redirected writes; removed after the run
    plan: overlay.OverlayPlan | None = None  # None: writes are redirected, without an overlay
    count_loopback: bool = False  # for tests: treat a server on this machine as a remote one
    is_offline: bool = False


def command(ticket: Ticket, entry: str = ENTRY) -> list[str]:
    """Writes the ticket to the spool. Returns the command that starts the process with this interpreter and its
    flags."""
    return [sys.executable, *interpreter_flags(), entry, str(write_ticket(ticket))]


def write_ticket(ticket: Ticket) -> Path:
    path = Path(ticket.settings.spool) / "ticket.json"
    path.write_bytes(msgspec.json.encode(ticket))
    return path


def main(ticket_path: str, apply_recipe: ApplyRecipe | None = None, fork_safety: ForkSafety | None = None) -> None:
    """Runs the script that the ticket names. `fork_safety` is given only in a process that was forked after torch had
    been imported."""
    ticket = msgspec.json.decode(Path(ticket_path).read_bytes(), type=Ticket)
    is_racing = ticket.settings.mode == "race"
    if is_racing:
        # The process gets a group of its own for two reasons. A Ctrl-C in the terminal then reaches only the backend.
        # If the backend is killed, the system continues the stopped processes of the group and sends them SIGHUP.
        os.setpgid(0, 0)
    if sys.platform == "linux":
        # A trial in a race may be stopped, and a stopped process reacts only to SIGKILL.
        mounts.die_with_parent(signal.SIGKILL if is_racing else signal.SIGTERM)
    if fork_safety is not None and (obstacle := fork_safety.obstacle_at_first(ticket.settings.script)):
        refuse(ticket.settings.spool, obstacle)
    spool = Path(ticket.settings.spool)
    is_covered = _enter_view(ticket, spool)
    if not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
        # This entry is a placeholder that `launch` replaces by the script's directory. Until then a file beside the
        # script must not shadow a module that slipstream imports.
        sys.path.insert(0, os.path.dirname(sys.executable))
    _claim_module(ticket.settings.script)
    run = start_run(ticket.settings, apply_recipe, fork_safety)
    offline_trackers.silence(run.import_hooks, ticket.scratch)
    if is_covered and not is_racing:
        downloads.note_connections(spool, count_loopback=ticket.count_loopback)
    elif not is_covered:
        _redirect(ticket, run.import_hooks)
    child_processes.follow(run)
    exit_deadline.limit_stopping(run)

    def leave(ending: Ending) -> None:
        child_processes.unfollow(run)
        ending = run.excuse(ending)
        run.leave(ending)
        if ending.reason == "stopped":
            _end_at_once(is_racing)

    try:
        launch(ticket.settings.script, leave)
    except LaunchError as error:
        (spool / REFUSED).write_text(str(error))
        sys.exit(EXIT_REFUSED)


def _end_at_once(is_racing: bool) -> None:
    """Ends the process without shutting the interpreter down, which would take another second. The script has already
    cleaned up. In a race the backend ends the trial's remaining processes. In a check the script's exit handlers end
    them."""
    if not is_racing:
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)


def _claim_module(script: list[str]) -> None:
    """Marks a package that the user runs with -m as user code, wherever the package is installed. Launchers are
    excluded."""
    if not is_module(script):
        return
    top = script[1].partition(".")[0]
    if top not in LAUNCHERS:
        with contextlib.suppress(Exception):  # finding a top-level package runs none of its code
            spec = PathFinder.find_spec(top, [os.getcwd(), *sys.path])
            for folder in (spec and spec.submodule_search_locations) or []:
                claim(folder)


def _enter_view(ticket: Ticket, spool: Path) -> bool:
    """Enters the overlay and, if the trial is offline, the network without a connection. Returns whether the overlay
    covers the working directory. A note lists the folders that the overlay does not cover."""
    if ticket.is_offline:
        network.enter()
    if ticket.plan is None:
        return False
    cwd = os.getcwd()
    try:
        uncovered = overlay.enter(ticket.plan)
    except OSError as error:  # a partial overlay is of no use: the parent starts again without one
        (spool / UNCOVERED).write_text(str(error))
        os._exit(EXIT_UNCOVERED)
    if uncovered or ticket.plan.bare:
        places = ", ".join([*uncovered, *ticket.plan.bare])
        _tell(
            spool,
            Told(note=f"No overlay was possible for {places}. Files that the script writes directly there are real."),
        )
    if ticket.plan.own_user:
        overlay_rename.allow_moving_directories()
    return cwd not in ticket.plan.bare and not any(is_below(cwd, path) for path in uncovered)


def _redirect(ticket: Ticket, import_hooks: ImportHooks) -> None:
    spool = Path(ticket.settings.spool)
    redirect_writes.Redirect(Path(ticket.scratch)).install(import_hooks)
    os.environ.setdefault("WANDB_DIR", ticket.scratch)
    state = threading.local()

    def tell(path: str) -> None:
        if not getattr(state, "busy", False):  # opening the spool calls this function again
            state.busy = True
            _tell(spool, Told(written=[path]))
            state.busy = False

    caches = overlay.cache_directories(protected_folders(Path.cwd(), ticket.settings.script))
    redirect_writes.list_openings(tell, [ticket.scratch, ticket.settings.spool, *caches])


def _tell(spool: Path, message: Told) -> None:
    sink = Spool(spool)
    sink.write(message)
    sink.close()
