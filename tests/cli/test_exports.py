"""The exports of slipstream report, and the torch profile that slipstream check saves."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slipstream.cli.group import slipstream
from slipstream.diagnose import diagnose
from slipstream.store.sessions import save_session
from slipstream.supervise.check import keep_profile
from slipstream.testing.made_sessions import made_session


@pytest.fixture(autouse=True)
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return save_session(diagnose(made_session()))


def call(*words: str) -> Result:
    return CliRunner().invoke(slipstream, ["report", "--quiet", *words])


def test_trace_to_a_file_compressed_and_to_stdout(saved: Path) -> None:
    done = call(saved.stem, "--trace", "out/trace.json")
    assert done.exit_code == 0 and "ui.perfetto.dev" in done.output
    plain = Path("out/trace.json").read_bytes()
    assert call("--trace", "trace.json.gz").exit_code == 0
    assert gzip.decompress(Path("trace.json.gz").read_bytes()) == plain
    assert json.loads(call("--trace", "-").output)["traceEvents"]


def test_tensorboard_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    refused = call("--tensorboard", "runs")
    assert refused.exit_code == 2 and "pip install tensorboard" in refused.output
    assert "Traceback" not in refused.output and not Path("runs").exists()


def test_a_session_that_does_not_exist() -> None:
    assert call("nonsense").exit_code == 2


def test_tensorboard_and_a_path_that_cannot_be_written() -> None:
    pytest.importorskip("tensorboard")
    assert "tensorboard --logdir runs" in call("--tensorboard", "runs").output
    assert len(list(Path("runs").iterdir())) == 2
    Path("file").write_text("")
    refused = call("--tensorboard", "file/below")
    assert refused.exit_code == 2 and "cannot be written" in refused.output


def test_a_profile_is_saved_or_the_user_is_told_why_not(tmp_path: Path) -> None:
    made = tmp_path / "made.json"
    assert "no step was run" in keep_profile(made, tmp_path / "kept.json")[0]
    made.write_text('{"traceEvents": []}')
    assert "is in" in keep_profile(made, tmp_path / "new/kept.json.gz")[0]
    assert json.loads(gzip.decompress((tmp_path / "new/kept.json.gz").read_bytes())) == {"traceEvents": []}
    assert "could not be written" in keep_profile(made, made / "below")[0]
