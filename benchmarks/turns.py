"""Contestants of a benchmark that take turns.

Each contestant is a separate process. The process is stopped, with all its workers and threads, except while it answers
a question. A contestant that fails or does not answer is left out, and the page gives the reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.supervise.process_control import ProcessTree

HERE = Path(__file__).parent
LEAD_IN_S, TIMED_S = 0.2, 0.6  # Shortest times. A slow loader takes longer for the smallest number of batches.
TIMEOUT_S = 150.0  # Long enough to convert data, to compile, and for an epoch that fills the cache


@dataclass(frozen=True)
class ContestantSpec:
    label: str
    peer: str  # Name of the module in peers/
    setting: dict[str, Any] = field(default_factory=dict)
    has_same_pixels: bool = True
    environment: dict[str, str] = field(default_factory=dict)


class Contestant:
    def __init__(self, spec: ContestantSpec, python: str, photographs: Path, folder: Path) -> None:
        self.spec = spec
        self.failure = ""
        self.rates: list[float] = []
        self.facts: dict[str, Any] = {}
        folder.mkdir(parents=True)
        self._log = (folder / "log.txt").open("w+")
        description = {"peer": spec.peer, "setting": spec.setting, "photographs": str(photographs)}
        self._process = subprocess.Popen(
            [python, "-m", "peers.serve", json.dumps({**description, "folder": str(folder)})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=_environment(spec, folder),
            start_new_session=True,
        )
        self._tree = ProcessTree(self._process.pid)

    def ask(self, lead_in: int, timed: int) -> None:
        """Runs one block while all other contestants are stopped. A block without timed batches is a warm-up."""
        assert self._process.stdin is not None
        self._tree.resume()
        try:
            question = {"lead_in": lead_in, "lead_in_s": LEAD_IN_S, "timed": timed, "timed_s": TIMED_S}
            print(json.dumps(question), file=self._process.stdin, flush=True)
            said = json.loads(self._line())
        except (OSError, ValueError) as fault:
            said = {"failure": f"it gave no answer ({fault}): {self._last_words()}"}
        complaints = said.get("complaints")
        self.failure = said.get("failure", "") or (f"failed in the block: {complaints}" if complaints else "")
        if self.failure:
            self.close()
            return
        self._tree.stop()
        if "rate" in said:
            self.rates.append(said["rate"])
        self.facts = said

    def _line(self) -> str:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], TIMEOUT_S)[0]:
            raise TimeoutError(f"not within {TIMEOUT_S:.0f} s")
        return self._process.stdout.readline()

    def _last_words(self) -> str:
        self._log.seek(0)
        return " / ".join(self._log.read().strip().splitlines()[-2:])

    def close(self) -> None:
        if self._log.closed:
            return
        self._tree.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            assert stream is not None
            with contextlib.suppress(OSError):  # The process may have ended before it read a question.
                stream.close()


def _environment(spec: ContestantSpec, folder: Path) -> dict[str, str]:
    """Environment variables that make slipstream and the benchmarks importable, and make caches separate and empty."""
    paths = [str(HERE.parent / "src"), str(HERE), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    own |= {"SLIPSTREAM_CACHE": str(folder / "cache"), "XDG_CACHE_HOME": str(folder / "other-cache")}
    return {**os.environ, **own, **spec.environment}


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
