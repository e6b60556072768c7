from __future__ import annotations

import pytest

from slipstream.diagnose import diagnose
from slipstream.records import Session
from slipstream.testing.made_sessions import made_session


@pytest.fixture
def session() -> Session:
    return diagnose(made_session())
