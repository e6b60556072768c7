"""slipstream cache shows and clears the cache, and needs no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.cli.group import slipstream
from slipstream.data.images.cache_folder import ImageFacts, survey
from slipstream.data.images.pixel_store import PixelStore, key_of


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path))
    for number in range(3):
        PixelStore(tmp_path / "images").write(
            ImageFacts(key_of(number), "L", (40, 30), -1, "/data/photos"), memoryview(bytes(1200))
        )
    (tmp_path / "notes.txt").write_text("the user's own")
    return tmp_path


def test_shows_and_asks_before_it_clears(filled: Path) -> None:
    shown = CliRunner().invoke(slipstream, ["cache"], standalone_mode=False)
    assert shown.exit_code == 0 and "3 decoded images" in shown.output and "/data/photos" in shown.output
    kept = CliRunner().invoke(slipstream, ["cache", "clear"], input="n\n", standalone_mode=False)
    assert "Nothing was deleted." in kept.output and survey().num_images == 3
    cleared = CliRunner().invoke(slipstream, ["cache", "clear", "--yes"], standalone_mode=False)
    assert "Deleted 3 images" in cleared.output and survey().num_images == 0
    assert (filled / "notes.txt").exists(), "only entries of the cache are deleted"


def test_yes_without_clear_is_a_usage_error(filled: Path) -> None:
    done = CliRunner().invoke(slipstream, ["cache", "--yes"])
    assert done.exit_code == 2 and "slipstream cache clear --yes" in done.output
    assert survey().num_images == 3


def test_it_needs_no_torch(filled: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['slipstream', 'cache'];"
        "from slipstream.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "3 decoded images" in done.stdout, done.stderr
