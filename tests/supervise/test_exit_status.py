"""The exit code and remark of a finished check."""

from __future__ import annotations

import msgspec
import pytest

from slipstream.records import Ending, Session
from slipstream.supervise.exit_status import exit_code, remark
from slipstream.testing.made_sessions import made_session


def ended(session: Session, **changes: object) -> Session:
    return msgspec.structs.replace(session, steps=[], evaluations=[], **changes)


@pytest.mark.parametrize("command", ["check", "tune", "memory"])
def test_the_remark_on_a_missing_device_names_the_command_that_was_typed(command: str) -> None:
    ending = Ending("raised", 1, 1.0, "AssertionError: Torch not compiled with CUDA enabled")
    session = ended(made_session(), ending=ending, command=command)
    assert exit_code(session) == 2
    assert f"Run slipstream {command} on the machine where it trains" in remark(session)
