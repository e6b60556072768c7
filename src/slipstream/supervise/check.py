"""What torch itself recorded of the observed step, kept for whoever wants to look at it in torch's own viewers: its
profile, or the memory snapshot of `memory`.

The parent's side of `check`: starts the rider, relays its terminal, reads its messages, ends it if it must, and
leaves nothing behind. Concludes nothing: it returns the session as it was seen."""

from __future__ import annotations

import contextlib
import datetime
import gzip
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from slipstream.launch.target import protected_folders
from slipstream.machine.environment import read_environment
from slipstream.machine.git import read_revision
from slipstream.machine.gpu import GpuSampler, gpu_present_but_unused
from slipstream.observe.assemble import assemble
from slipstream.records import Ended, Ending, Message, Progress, Seen, Session, TorchProfile
from slipstream.sandbox import downloads, overlay
from slipstream.sandbox.workspace import Workspace
from slipstream.store.sessions import known_speedtest
from slipstream.supervise.orphans import no_leftovers
from slipstream.supervise.pty_relay import PtyRelay
from slipstream.supervise.signals import Interrupts
from slipstream.trial.lifecycle import TrialSettings
from slipstream.trial.main import EXIT_REFUSED, EXIT_UNCOVERED, REFUSED, UNCOVERED, Ticket, command
from slipstream.wire.spool import SpoolReader

PROFILE = "torch-profile.json"
_NAMES = {"check": "torch profile", "memory": "memory snapshot"}
_MISSING = {
    "check": "no step was run under the profiler",
    "memory": "torch makes them on CUDA devices alone, and no step was observed on one",
}
_KEPT = {"check": "Torch's profile of a few steps", "memory": "Torch's memory snapshot of the observed step"}
_MORE = {"check": "; slipstream report --trace FILE lays it over the phases", "memory": ""}


def keep_profile(made: Path, path: Path, command: str = "check") -> list[str]:
    """Where the user wants it, packed if its name ends in .gz. Returns notes: a check does not fail of it."""
    if not made.is_file() or not made.stat().st_size:
        return [f"There is no {_NAMES[command]} in {path}: {_MISSING[command]}."]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with made.open("rb") as source, gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as target:
            shutil.copyfileobj(source, target)
    except OSError as error:
        return [f"The {_NAMES[command]} could not be written to {path}: {error.strerror}."]
    return [f"{_KEPT[command]} is in {path}{_MORE[command]}."]


_POLL_S = 0.05
_GRACE_S = 30.0  # beyond the asked time, before a rider that does not stop is interrupted
_PATIENCE_S = 10.0  # between interrupting and killing
_START_FACTOR = 10  # a script may take this many times the asked time to reach its first step
_MOST_WRITTEN = 200


class RefusalError(Exception):
    """The command cannot be carried out: a sentence for the user, who did not get a ride."""


class ProgressLine(Protocol):
    """What is shown while the script rides."""

    def take(self, progress: Progress) -> None: ...

    def text(self, elapsed_s: float, width: int) -> str: ...


class CheckOptions(msgspec.Struct, frozen=True):
    """What the user asked for."""

    script: list[str]
    num_steps: int = 0
    seconds: float = 60.0
    use_overlay: bool = True
    command: str = "check"
    schedule: str = ""  # of another command than check
    count_loopback: bool = False  # tests: a download from this machine is one
    least_kept_bytes: int = 1 << 20
    profile: str = ""  # a file for torch's own profile of the observed step; of memory: for its snapshot


def supervise(order: CheckOptions, line: ProgressLine | None = None) -> Session:
    """One ride from start to end."""
    cwd = Path.cwd()
    created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    environment, revision = read_environment(cwd), read_revision(cwd)
    with no_leftovers():
        ride = _ride_covered(order, line, cwd)
    session = assemble(
        ride.messages,
        command=order.command,
        script=order.script,
        cwd=str(cwd),
        created=created,
        environment=environment,
        ending=ride.ending,
    )
    environment = msgspec.structs.replace(session.environment, readings=ride.gpus.stop())
    idle = gpu_present_but_unused(environment, environment.torch) if environment.torch is not None else ""
    return msgspec.structs.replace(
        session,
        environment=environment,
        revision=revision,
        torch_profile=_placed(session.torch_profile, order.profile),
        speedtest=known_speedtest(cwd),
        notes=[*([idle] if idle else []), *session.notes, *ride.notes],
        passed_through=ride.passed_through,
        written=shorten(list(dict.fromkeys([*session.written, *ride.written])), cwd),
    )


def _placed(profile: TorchProfile | None, path: str) -> TorchProfile | None:
    """Where the user wanted it, and not where the rider wrote it; None where it could not be brought there."""
    return msgspec.structs.replace(profile, path=path) if profile is not None and Path(path).is_file() else None


class _CheckRun:
    """One rider, watched from outside."""

    def __init__(self, line: ProgressLine | None) -> None:
        self.line = line
        self.gpus = GpuSampler()
        self.messages: list[tuple[int, Message]] = []
        self.notes: list[str] = []
        self.written: list[str] = []
        self.passed_through: list[str] = []
        self.ending = Ending("killed", 1, 0.0)
        self.start_s = time.monotonic()
        self.first_step_s: float | None = None
        self.first_step_ns = 0  # since the epoch, as files have it
        self.is_told_to_end = False
        self.process = 0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.start_s

    def take(self, messages: Iterator[tuple[int, Message]]) -> None:
        for process, message in messages:
            if isinstance(message, Progress) and self.line is not None:
                self.line.take(message)
            if self.first_step_s is None and _is_step(message):
                self.first_step_s, self.first_step_ns = self.elapsed_s, time.time_ns()
            self.messages.append((process, message))


def _is_step(message: Message) -> bool:
    if isinstance(message, Progress):
        return message.num_steps > 0
    return isinstance(message, Seen) and any(event.kind in ("backward", "optimizer") for event in message.events)


def _ride_covered(order: CheckOptions, line: ProgressLine | None, cwd: Path) -> _CheckRun:
    """Under an overlay if there can be one; otherwise, or if making it fails after all, without."""
    parent, own_user, reason = overlay.probe() if order.use_overlay else (None, False, "--no-overlay")
    if parent is not None:
        ride = _ride_in_room(order, line, cwd, Workspace(parent), own_user=own_user)
        if isinstance(ride, _CheckRun):
            return ride
        reason = ride
    ride = _ride_in_room(order, line, cwd, Workspace(overlay.temporary_directory()), own_user=None)
    assert isinstance(ride, _CheckRun)
    ride.notes.append(
        f"No throw-away file system ({reason}): checkpoints and logs of known libraries were redirected and"
        " deleted; other files that the script wrote are real."
    )
    return ride


def _ride_in_room(
    order: CheckOptions, line: ProgressLine | None, cwd: Path, room: Workspace, *, own_user: bool | None
) -> _CheckRun | str:
    """A string: the overlay could not be made, and why."""
    ride = _CheckRun(line)
    try:
        plan = room.cover(cwd, order.script, own_user=own_user) if own_user is not None else None
        settings = TrialSettings(
            mode="check",
            num_steps=order.num_steps,
            seconds=order.seconds,
            spool=str(room.spool),
            script=order.script,
            schedule=order.schedule,
            profile=str(room.scratch / PROFILE) if order.profile else "",
        )
        exit_code = _run(ride, Ticket(settings, str(room.scratch), plan, order.count_loopback), room)
        if exit_code == EXIT_UNCOVERED and (room.spool / UNCOVERED).exists():
            return (room.spool / UNCOVERED).read_text()
        if exit_code == EXIT_REFUSED and (room.spool / REFUSED).exists():
            raise RefusalError((room.spool / REFUSED).read_text())
        ride.ending = _ending(ride, exit_code)
        if order.profile:
            ride.notes += keep_profile(room.scratch / PROFILE, Path(order.profile), order.command)
        if plan is not None:
            until_ns = ride.first_step_ns or time.time_ns()
            try:
                ride.notes += downloads.keep_downloads(plan, cwd, room.spool, until_ns, order.least_kept_bytes)
            except OSError as error:
                ride.notes.append(f"What the script downloaded could not be kept: {error}.")
            ride.written += [path for path, _ in overlay.written(plan)]
            ride.passed_through = [path for path in plan.through if not overlay.is_below(path, str(room.path))]
            ride.notes += [
                f"{name} names {path}, where the script or its working directory is: what was written there was thrown"
                " away, too."
                for name, path in overlay.covered_caches(protected_folders(cwd, order.script))
            ]
        return ride
    finally:
        room.remove()


def _run(ride: _CheckRun, ticket: Ticket, room: Workspace) -> int:
    """Starts the rider and stays with it until it has ended. Returns what Popen calls the return code."""
    reader = SpoolReader(room.spool)
    start = command(ticket)
    sys.stdout.flush()
    sys.stderr.flush()
    with PtyRelay() as terminal:
        trial = subprocess.Popen(start, stdout=terminal.stdout, stderr=terminal.stderr)
        ride.process = trial.pid
        terminal.started()
        try:
            with Interrupts(trial) as interrupts, ride.gpus:  # in this order: its thread must not catch our signals
                while trial.poll() is None:
                    terminal.pump(_POLL_S, trial.pid)
                    ride.take(reader.read())
                    interrupts.look()
                    _mind_the_time(ride, interrupts, ticket.settings.seconds)
                    if ride.line is not None:
                        terminal.show(ride.line.text(ride.elapsed_s, terminal.width))
                terminal.drain()
                ride.take(reader.read())
        finally:
            _end(trial)
    return trial.returncode


def _end(trial: subprocess.Popen[bytes]) -> None:
    if trial.poll() is None:
        trial.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            trial.wait(_PATIENCE_S)
        trial.kill()
        trial.wait()


def _mind_the_time(ride: _CheckRun, interrupts: Interrupts, seconds: float) -> None:
    """A rider stops by itself; this is for one that cannot."""
    if seconds <= 0:
        return
    if ride.first_step_s is None:
        limit_s, what = _START_FACTOR * seconds, "it had reached no step"
    else:
        limit_s, what = ride.first_step_s + 2 * seconds + _GRACE_S, "it did not stop when asked to"
    if ride.elapsed_s > limit_s and not ride.is_told_to_end:
        ride.is_told_to_end = True
        ride.notes.append(f"The script was interrupted after {ride.elapsed_s:.0f} s: {what}.")
        interrupts.interrupt()
    elif ride.elapsed_s > limit_s + _PATIENCE_S:
        interrupts.kill()


def _ending(ride: _CheckRun, return_code: int) -> Ending:
    """What the rider said itself, unless it could not speak any more."""
    endings = [(process, message.ending) for process, message in ride.messages if isinstance(message, Ended)]
    said = [ending for process, ending in endings if process == ride.process]
    if said and (return_code >= 0 or said[-1].reason == "interrupted"):
        if said[-1].reason == "finished" and any(ending.reason == "stopped" for _, ending in endings):
            return msgspec.structs.replace(said[-1], reason="stopped")  # it waited for a child that we stopped
        return said[-1]
    if return_code < 0:
        name = _signal_name(-return_code)
        return Ending("killed", 128 - return_code, ride.elapsed_s, f"ended by {name}")
    if return_code > 0:
        return Ending("raised", return_code, ride.elapsed_s)
    return Ending("finished" if ride.first_step_s is None else "stopped", 0, ride.elapsed_s)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def shorten(paths: list[str], cwd: Path) -> list[str]:
    """As the user knows them: relative to where they are; without what libraries leave in the temporary directory."""
    temporary = str(overlay.temporary_directory())
    names = []
    for path in paths:
        if overlay.is_below(path, str(cwd)):
            names.append(os.path.relpath(path, cwd))
        elif not overlay.is_below(path, temporary):
            names.append(path)
    if len(names) <= _MOST_WRITTEN:
        return names
    return [*names[:_MOST_WRITTEN], f"and {len(names) - _MOST_WRITTEN} more"]
