"""The parent's side of `check`. It starts the trial, forwards its terminal output, reads its messages and ends the
trial if necessary. It removes the trial's processes and workspace. It returns the recorded session and draws no
conclusions.

If the user asked for torch's own recording, it also copies this recording to the path that the user chose. The
recording is the profile of a few steps or, for `memory`, the memory snapshot of the observed step. Torch's viewers can
open both."""

from __future__ import annotations

import datetime
import gzip
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from slipstream.launch.target import protected_folders
from slipstream.machine.environment import read_environment
from slipstream.machine.foreign_load import ForeignLoad, LoadSampler
from slipstream.machine.git import read_revision
from slipstream.machine.gpu import GpuSampler, find_idle_gpu, load_nvml
from slipstream.observe.assemble import assemble
from slipstream.records import Ended, Ending, Failure, Message, Progress, Seen, Session, TorchProfile
from slipstream.sandbox import downloads, overlay
from slipstream.sandbox.overlap import is_below
from slipstream.sandbox.shortages import full_disk, is_full
from slipstream.sandbox.uncovered_places import UncoveredPlaces
from slipstream.sandbox.workspace import Workspace, Workspaces
from slipstream.store.sessions import known_speedtest
from slipstream.supervise.process_control import no_leftovers, own_processes
from slipstream.supervise.pty_relay import PtyRelay
from slipstream.supervise.signals import Interrupts, ended_by_signals, unbroken
from slipstream.supervise.trial_process import LateError, RefusalError, TrialProcess, UncoveredError, signal_name
from slipstream.trial.lifecycle import TrialSettings

PROFILE = "torch-profile.json"
_NAMES = {"check": "torch profile", "memory": "memory snapshot"}
_MISSING = {
    "check": "no step was run under the profiler",
    "memory": "torch makes them on CUDA devices alone, and no step was observed on one",
}
_KEPT = {"check": "Torch's profile of a few steps", "memory": "Torch's memory snapshot of the observed step"}
_MORE = {"check": "; slipstream report --trace FILE lays it over the phases", "memory": ""}


def keep_profile(made: Path, path: Path, command: str = "check") -> list[str]:
    """Copies the file `made` to `path`, compressed if the name ends in .gz. Returns notes for the session, because an
    error here does not make the check fail."""
    if not made.is_file() or not made.stat().st_size:
        return [f"There is no {_NAMES[command]} in {path}: {_MISSING[command]}."]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with made.open("rb") as source, gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as target:
            shutil.copyfileobj(source, target)
    except OSError as error:
        return [f"The {_NAMES[command]} could not be written to {path}: {error.strerror}."]
    return [f"{_KEPT[command]} is in {path}{_MORE[command]}."]


_GRACE_S = 30.0  # a trial that does not stop is interrupted this long after twice the requested time
_PATIENCE_S = 10.0  # seconds between interrupting the trial and killing it
_START_FACTOR = 10  # a script may take this many times the requested time to reach its first step
_MOST_WRITTEN = 200


class ProgressLine(Protocol):
    """The line that is shown while the script runs."""

    def take(self, progress: Progress) -> None: ...

    def text(self, elapsed_s: float, width: int) -> str: ...


class CheckOptions(msgspec.Struct, frozen=True):
    """What the user requested."""

    script: list[str]
    num_steps: int = 0
    seconds: float = 60.0
    use_overlay: bool = True
    is_offline: bool = False
    command: str = "check"
    schedule: str = ""  # module:class, for commands other than check
    count_loopback: bool = False  # for tests: whether a download from this machine counts as a download
    least_kept_bytes: int = 1 << 20
    profile: str = ""  # path for torch's profile of a few steps or, for `memory`, for the memory snapshot


def supervise(options: CheckOptions, line: ProgressLine | None = None) -> Session:
    """Runs the script once, until it ends or has run long enough, and returns the session."""
    cwd = Path.cwd()
    created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    environment, revision = read_environment(cwd), read_revision(cwd)
    with ended_by_signals(), no_leftovers():
        run = _run_with_overlay(options, line, cwd)
    session = assemble(
        run.messages,
        command=options.command,
        script=options.script,
        cwd=str(cwd),
        created=created,
        environment=environment,
        ending=run.ending,
    )
    environment = msgspec.structs.replace(session.environment, readings=run.gpus.stop())
    return msgspec.structs.replace(
        session,
        environment=environment,
        revision=revision,
        foreign_load=run.load.samples,
        torch_profile=_placed(session.torch_profile, options.profile),
        speedtest=known_speedtest(cwd),
        notes=[*session.notes, *run.notes],
        idle_gpu=find_idle_gpu(environment, environment.torch) if environment.torch is not None else None,
        no_overlay=run.no_overlay,
        passed_through=run.passed_through,
        written=shorten(list(dict.fromkeys([*session.written, *run.written])), cwd),
    )


def _placed(profile: TorchProfile | None, path: str) -> TorchProfile | None:
    """Returns the profile with the path that the user chose, or None if it could not be copied there."""
    return msgspec.structs.replace(profile, path=path) if profile is not None and Path(path).is_file() else None


class _CheckRun:
    """The state of one run, seen from the parent."""

    def __init__(self, line: ProgressLine | None) -> None:
        self.line = line
        self.gpus = GpuSampler()
        self.load = LoadSampler(ForeignLoad(nvml=load_nvml()), own_processes)
        self.messages: list[tuple[int, Message]] = []
        self.notes: list[str] = []
        self.no_overlay = ""  # why there is no overlay
        self.written: list[str] = []
        self.passed_through: list[str] = []
        self.ending = Ending("killed", 1, 0.0)
        self.start_s = time.monotonic()
        self.first_step_s: float | None = None
        self.first_step_ns = 0  # since the epoch, like the times of files
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


def _run_with_overlay(options: CheckOptions, line: ProgressLine | None, cwd: Path) -> _CheckRun:
    """Runs the script under an overlay. If an overlay is not possible, the script runs without one."""
    workspaces = Workspaces(options.script, options.use_overlay, options.is_offline)
    try:
        run = _run_in_workspace(options, line, cwd, workspaces.make())
    except UncoveredError as uncovered:
        workspaces.go_uncovered(str(uncovered))
        run = _run_in_workspace(options, line, cwd, workspaces.make())
    run.no_overlay = workspaces.no_overlay
    return run


def _run_in_workspace(options: CheckOptions, line: ProgressLine | None, cwd: Path, workspace: Workspace) -> _CheckRun:
    run = _CheckRun(line)
    places = UncoveredPlaces()
    settings = TrialSettings(
        mode="check",
        num_steps=options.num_steps,
        seconds=options.seconds,
        script=options.script,
        schedule=options.schedule,
        profile=str(workspace.scratch / PROFILE) if options.profile else "",
    )
    try:
        exit_code = _run_trial(run, workspace, settings, options.count_loopback)
        if is_full(workspace.path):
            raise RefusalError(Failure(f"{full_disk(workspace.path)}."))
        run.ending = _ending(run, exit_code)
        if options.profile:
            run.notes += keep_profile(workspace.scratch / PROFILE, Path(options.profile), options.command)
        if workspace.plan is not None:
            _collect(run, options, cwd, workspace, workspace.plan)
            run.written += places.new_files()
    finally:
        with unbroken():
            workspace.remove()
    return run


def _collect(run: _CheckRun, options: CheckOptions, cwd: Path, workspace: Workspace, plan: overlay.OverlayPlan) -> None:
    """Keeps downloads, and lists the other files that the script wrote into the overlay."""
    until_ns = run.first_step_ns or time.time_ns()
    try:
        run.notes += downloads.keep_downloads(plan, cwd, workspace.spool, until_ns, options.least_kept_bytes)
    except OSError as error:
        run.notes.append(f"What the script downloaded could not be kept: {error}.")
    run.written += [path for path, _ in overlay.written(plan)]
    run.passed_through = [path for path in plan.through if not is_below(path, str(workspace.path))]
    run.notes += [
        f"The cache {path} ({name}) overlaps with the script's folder or the working directory: what was written there"
        " was thrown away, too."
        for name, path in overlay.covered_caches(protected_folders(cwd, options.script))
    ]


def _run_trial(run: _CheckRun, workspace: Workspace, settings: TrialSettings, count_loopback: bool) -> int:
    """Starts the trial and waits until it has ended. Returns its exit code, negative for a signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    with PtyRelay() as terminal:
        trial = TrialProcess(
            workspace, settings, stdout=terminal.stdout, stderr=terminal.stderr, count_loopback=count_loopback
        )
        run.process = trial.pid
        terminal.started()
        try:
            # Interrupts comes first. The thread of the GPU sampler then inherits the signal mask that Interrupts sets,
            # and receives no signals.
            with Interrupts(trial.send) as interrupts, run.gpus:

                def look(timeout_s: float) -> None:
                    terminal.pump(timeout_s, trial.pid)
                    run.take(trial.messages())
                    interrupts.look()
                    run.load.look()
                    if run.line is not None:
                        terminal.show(run.line.text(run.elapsed_s, terminal.width))

                _wait_for_end(run, trial, look, settings.seconds)
                terminal.drain()
                run.take(trial.messages())
        finally:
            trial.end(_PATIENCE_S)
    trial.raise_refusal()
    exit_code = trial.poll()
    assert exit_code is not None
    return exit_code


def _wait_for_end(run: _CheckRun, trial: TrialProcess, look: Callable[[float], None], seconds: float) -> None:
    """Returns when the trial has ended. Ends a trial that does not stop by itself in time."""
    seconds = seconds if seconds > 0 else math.inf

    def look_for_step(timeout_s: float) -> float | None:
        look(timeout_s)
        return run.first_step_s

    what = "it had reached no step"
    try:
        if trial.wait_for(look_for_step, _START_FACTOR * seconds) is not None:
            what = "it did not stop when it was asked to"
            trial.wait_for(look, 2 * seconds + _GRACE_S)
    except LateError:
        run.notes.append(f"The script was interrupted after {run.elapsed_s:.0f} s: {what}.")
        trial.send(signal.SIGINT)
        try:
            trial.wait_for(look, _PATIENCE_S)
        except LateError:
            trial.end()


def _ending(run: _CheckRun, return_code: int) -> Ending:
    """Returns the ending that the trial recorded. If the trial recorded none, or if a signal ended the trial although
    it was not interrupted, the function derives the ending from the return code."""
    endings = [(process, message.ending) for process, message in run.messages if isinstance(message, Ended)]
    recorded = [ending for process, ending in endings if process == run.process]
    if recorded and (return_code >= 0 or recorded[-1].reason == "interrupted"):
        if recorded[-1].reason == "finished" and any(ending.reason == "stopped" for _, ending in endings):
            # The script waited for a child process that slipstream has stopped.
            return msgspec.structs.replace(recorded[-1], reason="stopped")
        return recorded[-1]
    if return_code < 0:
        return Ending("killed", 128 - return_code, run.elapsed_s, f"ended by {signal_name(return_code)}")
    if return_code > 0:
        return Ending("raised", return_code, run.elapsed_s)
    return Ending("finished" if run.first_step_s is None else "stopped", 0, run.elapsed_s)


def shorten(paths: list[str], cwd: Path) -> list[str]:
    """Returns the paths without files in the temporary directory. Paths below the working directory become relative. A
    long list is cut, and its last entry then says how many paths are left out."""
    temporary = str(overlay.temporary_directory())
    names = []
    for path in paths:
        if is_below(path, str(cwd)):
            names.append(os.path.relpath(path, cwd))
        elif not is_below(path, temporary):
            names.append(path)
    if len(names) <= _MOST_WRITTEN:
        return names
    return [*names[:_MOST_WRITTEN], f"and {len(names) - _MOST_WRITTEN} more"]
