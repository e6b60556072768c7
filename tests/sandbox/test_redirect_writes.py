from __future__ import annotations

import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from slipstream.sandbox import offline_trackers
from slipstream.sandbox.redirect_writes import Redirect
from slipstream.seams.import_hooks import ImportHooks


def fake_torch() -> Any:
    """A module with only these two functions. The real functions would be replaced permanently in the test process."""
    module: Any = ModuleType("torch.serialization")
    module.save = lambda thing, f: Path(f).write_text(thing) if isinstance(f, str | Path) else f.write(thing)
    module.load = lambda f: Path(f).read_text() if isinstance(f, str | Path) else f.read()
    return module


def test_saved_file_is_redirected_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, scratch = tmp_path / "work", tmp_path / "scratch"
    work.mkdir()
    monkeypatch.chdir(work)
    (work / "old.pt").write_text("old")
    module = fake_torch()
    Redirect(scratch)._divert(module, "save", "load")
    assert module.load("old.pt") == "old"
    module.save("new", "old.pt")
    module.save("named", f=work / "named.pt")
    assert (module.load("old.pt"), module.load(work / "named.pt")) == ("new", "named")
    assert {path.name: path.read_text() for path in work.iterdir()} == {"old.pt": "old"}
    buffer = io.StringIO()
    module.save("memory", buffer)
    assert buffer.getvalue() == "memory"
    with pytest.raises(FileNotFoundError):
        module.save("x", "no/such/place.pt")


def test_trackers_stay_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in offline_trackers._OFFLINE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://example.invalid")
    monkeypatch.setenv("NEPTUNE_MODE", "debug")
    (tmp_path / "wandb.py").write_text("def init(project=None, mode=None):\n    return mode\n")
    monkeypatch.syspath_prepend(tmp_path)
    arrivals = ImportHooks()
    try:
        offline_trackers.silence(arrivals, str(tmp_path))
        import wandb  # type: ignore[import-not-found]

        assert wandb.init(mode="online") == wandb.init("mine") == "offline"
        assert wandb.init(mode="disabled") == "disabled"
        import os

        assert os.environ["WANDB_MODE"] == "offline" and os.environ["NEPTUNE_MODE"] == "debug"
        assert os.environ["MLFLOW_TRACKING_URI"].startswith("file:")
    finally:
        arrivals.close()
        sys.modules.pop("wandb", None)
        for name in (*offline_trackers._OFFLINE, "COMET_OFFLINE_DIRECTORY"):
            monkeypatch.delenv(name, raising=False)
