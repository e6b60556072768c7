"""One start of a trial, seen from the parent: its processes and the messages in its spool. `check` and races share this
code. They differ in what they ask the trial to do, and in what they read while they wait for the trial."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeVar

import msgspec

from slipstream.records import Failure, Message
from slipstream.sandbox.workspace import Workspace
from slipstream.supervise.fork_server import ForkedProcess, ForkServer
from slipstream.supervise.process_control import ProcessTree
from slipstream.trial.forked import UNREADY
from slipstream.trial.lifecycle import TrialSettings
from slipstream.trial.main import ENTRY, REFUSED, UNCOVERED, Ticket, command, write_ticket
from slipstream.wire.spool import SpoolReader

T = TypeVar("T")
_POLL_S: Final = 0.1
_BUSY: Final = 0.2  # cores; a silent trial that uses less CPU than this until the limit counts as hung


class OutError(Exception):
    """The trial has failed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class LateError(OutError):
    """The trial did not reach the expected point in time. It still runs."""


class RefusalError(OutError):
    """The script was not run. The message is a sentence for the user."""


class UncoveredError(Exception):
    """The overlay could not be created. The trial may start again without one."""


class UnreadyError(Exception):
    """A trial from a fork server would behave differently than in a new process. The message is the reason. The trial
    may start in a new process."""


_NOT_RUN: Final[dict[str, Callable[[str], Exception]]] = {  # by the file in the spool that contains the reason
    UNCOVERED: UncoveredError,
    UNREADY: UnreadyError,
    REFUSED: lambda reason: RefusalError(Failure(reason)),
}


class TrialProcess:
    """One start of a trial, with all its processes. The caller that created the workspace must remove it."""

    def __init__(
        self,
        workspace: Workspace,
        settings: TrialSettings,
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        entry: str = ENTRY,
        environment: Mapping[str, str] | None = None,
        server: ForkServer | None = None,
        count_loopback: bool = False,
    ) -> None:
        """`server` forks the process. Without it, the trial starts in a new process."""
        self.workspace = workspace
        self._messages = SpoolReader(workspace.spool)
        settings = msgspec.structs.replace(settings, spool=str(workspace.spool))
        ticket = Ticket(settings, str(workspace.scratch), workspace.plan, count_loopback, workspace.is_offline)
        self.start_s = time.monotonic()
        forked = None
        if server is not None and stdout is not None and stderr is not None:
            forked = server.fork(write_ticket(ticket), stdout, stderr)
        self._process: subprocess.Popen[bytes] | ForkedProcess = forked or subprocess.Popen(
            command(ticket, entry),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **(environment or {})},
        )
        self._tree = ProcessTree(self.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def pids(self) -> list[int]:
        """Returns the ids of all processes of the trial."""
        return self._tree.members()

    @property
    def is_forked(self) -> bool:
        return isinstance(self._process, ForkedProcess)

    def poll(self) -> int | None:
        """Returns the exit code, negative for a signal, or None while the trial runs."""
        return self._process.poll()

    def messages(self) -> Iterator[tuple[int, Message]]:
        """Returns the messages that the trial's processes have written to the spool since the last call, and the ids of
        these processes. This also works after the end of the trial."""
        return self._messages.read()

    def wait_for(self, look: Callable[[float], T], limit_s: float, most_s: float = 0.0) -> T:
        """Calls `look` until it returns a value other than None, or until the trial has ended. Returns the last value.
        `look` receives the longest time in seconds for which it may wait. Raises LateError after `limit_s`. A trial
        that uses CPU meanwhile, for example for an evaluation or a long compilation, gets the longer limit `most_s`."""
        start_s = window_s = time.monotonic()
        used_s: float | None = None
        while True:
            has_ended = self.poll() is not None
            found = look(0.0 if has_ended else min(_POLL_S, limit_s))
            if found is not None or has_ended:
                return found
            now_s = time.monotonic()
            if used_s is None and most_s > limit_s:
                # The CPU time is read only after the first look, because most messages arrive before that, and reading
                # takes CPU time from the trial.
                used_s = self._tree.cpu_s()
            if now_s - window_s >= limit_s:
                is_busy = used_s is not None and self._tree.cpu_s() - used_s > _BUSY * (now_s - window_s)
                if not is_busy or now_s - start_s >= most_s:
                    raise LateError(Failure(f"had not reached a step after {now_s - start_s:.0f} s, and was ended"))
                window_s, used_s = now_s, None

    def raise_refusal(self) -> None:
        """Raises the reason if the trial has ended before it ran the script."""
        for name, error in _NOT_RUN.items():
            with contextlib.suppress(FileNotFoundError):
                raise error((self.workspace.spool / name).read_text())

    # --- end --------------------------------------------------------------------------------------------------------

    def send(self, number: int) -> None:
        """Sends a signal to the trial's first process."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def end(self, patience_s: float = 0.0) -> None:
        """Ends all processes of the trial, stopped or not. With `patience_s`, the trial is first asked to end, and gets
        this time to clean up."""
        if patience_s and self.poll() is None and self._ask_to_end():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
        self._tree.kill()
        self._process.wait()

    def _ask_to_end(self) -> bool:
        """Returns whether the trial could be asked."""
        self.send(signal.SIGTERM)
        return True


def signal_name(exit_code: int) -> str:
    """Returns the name of the signal that ended a process with this negative exit code."""
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"
