"""Files in shared memory, which overlays do not cover, are listed."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.sandbox.uncovered_places import UncoveredPlaces

SHARED = Path("/dev/shm")


@pytest.fixture
def path() -> Iterator[Path]:
    path = SHARED / f"test-{uuid.uuid4()}"
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.skipif(not os.access(SHARED, os.W_OK), reason="no shared memory")
def test_only_new_files_are_listed(path: Path) -> None:
    places = UncoveredPlaces()
    path.write_text("")
    assert str(path) in places.new_files()
    assert str(path) not in UncoveredPlaces().new_files()
