from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from slipstream.seams.arrival import Arrivals


@pytest.fixture
def module_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "arriving.py").write_text(
        "import sys\nvalue = 3\nloader_was_plain = 'exec_module' not in vars(__spec__.loader)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "arriving", raising=False)
    return tmp_path


def test_called_when_the_module_has_run_and_gone_afterwards(module_dir: Path) -> None:
    arrivals, met = Arrivals(), []
    arrivals.when_imported("arriving", lambda module: met.append(module.value))
    assert met == [] and arrivals in sys.meta_path
    module = importlib.import_module("arriving")
    assert met == [3]
    assert module.loader_was_plain
    assert arrivals not in sys.meta_path


def test_called_at_once_for_a_module_that_is_there() -> None:
    arrivals, met = Arrivals(), []
    arrivals.when_imported("json", met.append)
    import json

    assert met == [json]


def test_closing_forgets(module_dir: Path) -> None:
    arrivals, met = Arrivals(), []
    arrivals.when_imported("arriving", met.append)
    arrivals.close()
    importlib.import_module("arriving")
    assert met == []
