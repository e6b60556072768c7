"""A script that does not stop when it is told to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from slipstream.records import Ended
from slipstream.wire.spool import SpoolReader

SCRIPT = """
import sys, time
from slipstream.trial.exit_deadline import limit_stopping
from slipstream.trial.lifecycle import TrialSettings, start_run
from slipstream.seams.stop import StopTrial
run = start_run(TrialSettings(mode="check", spool=sys.argv[1]))
limit_stopping(run, 0.2)
try:
    raise StopTrial
except BaseException:
    print("caught")
time.sleep(600)
"""


def test_a_script_that_does_not_stop_is_ended_after_its_messages_are_written(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "caught\n", "")
    messages = [message for _, message in SpoolReader(tmp_path).read()]
    assert [message.ending.reason for message in messages if isinstance(message, Ended)] == ["stopped"]
