"""`slipstream.watch()`: observes a training from inside a program or a notebook cell.

The session is like a session of `check`, but without ceilings. To measure a ceiling, the script must get other batches,
and `watch` must not change a training whose result the user wants to keep.
"""

from __future__ import annotations

import datetime
import os
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Literal

from slipstream.records import Ending, Session


class Watch:
    """A context manager that observes the training inside its block.

    After `with slipstream.watch() as watch: train()`, the result is in `watch.session`. `print(watch)` prints the
    report, and a notebook shows it as the output of the cell.
    """

    def __init__(self) -> None:
        self._session: Session | None = None
        self._start = 0.0

    @property
    def session(self) -> Session:
        if self._session is None:
            raise ValueError("slipstream.watch is still observing; the session is available after the with block")
        return self._session

    def __enter__(self) -> Watch:
        from slipstream.trial.lifecycle import TrialSettings, start_run

        self._start = time.monotonic()
        self._created = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        self._spool = tempfile.TemporaryDirectory(prefix="slipstream-")
        self._trial = start_run(TrialSettings(mode="watch", spool=self._spool.name))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        from slipstream.diagnose import diagnose
        from slipstream.machine.environment import read_environment
        from slipstream.observe.assemble import assemble
        from slipstream.wire.spool import SpoolReader

        ending = self._ending(raised)
        self._trial.leave(ending)
        with self._spool:
            messages = list(SpoolReader(Path(self._spool.name)).read())
        cwd = os.getcwd()
        session = assemble(
            messages,
            command="watch",
            script=[],
            cwd=cwd,
            created=self._created,
            environment=read_environment(cwd),
            ending=ending,
        )
        self._session = diagnose(session)
        return False

    def _ending(self, raised: BaseException | None) -> Ending:
        seconds = time.monotonic() - self._start
        if raised is None:
            return Ending("finished", 0, seconds)
        reason: Literal["interrupted", "raised"] = "interrupted" if isinstance(raised, KeyboardInterrupt) else "raised"
        return Ending(reason, 1, seconds, f"{type(raised).__name__}: {raised}")

    def __str__(self) -> str:
        from slipstream.report.terminal.session import render_to_text

        return render_to_text(self.session)

    def __repr__(self) -> str:
        return "<slipstream.watch, still observing>" if self._session is None else str(self)

    def _repr_html_(self) -> str | None:
        if self._session is None:
            return None
        from slipstream.report.notebook import to_html

        return to_html(self._session)
