from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from slipstream.records import Ended
from slipstream.wire.spool import SpoolReader

SCRIPT = """
import sys, time
from slipstream.trial.shutdown import limit_stopping
from slipstream.trial.lifecycle import TrialSettings, board
from slipstream.seams.stop import StopTrial
ride = board(TrialSettings(mode="check", spool=sys.argv[1]))
limit_stopping(ride, 0.2)
try:
    raise StopTrial
except BaseException:
    print("caught")
time.sleep(600)
"""


def test_a_script_that_will_not_stop_is_ended_and_has_told_all(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "caught\n", "")
    messages = [message for _, message in SpoolReader(tmp_path).read()]
    assert [message.ending.reason for message in messages if isinstance(message, Ended)] == ["stopped"]
