from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from slipstream.seams.import_hooks import ImportHooks


@pytest.fixture
def module_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "arriving.py").write_text(
        "import sys\nvalue = 3\nloader_was_plain = 'exec_module' not in vars(__spec__.loader)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "arriving", raising=False)
    return tmp_path


def test_callback_is_called_after_the_import_and_the_finder_is_removed(module_dir: Path) -> None:
    arrivals, met = ImportHooks(), []
    arrivals.when_imported("arriving", lambda module: met.append(module.value))
    assert met == [] and arrivals in sys.meta_path
    module = importlib.import_module("arriving")
    assert met == [3]
    assert module.loader_was_plain
    assert arrivals not in sys.meta_path


def test_callback_gets_the_package_and_not_its_inner_module_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenCV's package does this."""
    package = tmp_path / "relinked"
    (package / "native").mkdir(parents=True)
    (package / "native" / "relinked.py").write_text("def read(): return 1\n")
    (package / "__init__.py").write_text(
        "import importlib, os, sys\n"
        "me = sys.modules.pop(__name__)\n"
        "sys.path.insert(0, os.path.join(os.path.dirname(__file__), 'native'))\n"
        "native = importlib.import_module(__name__)\n"
        "sys.modules[__name__] = me\n"
        "read = native.read\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    arrivals, met = ImportHooks(), []
    arrivals.when_imported("relinked", met.append)
    module = importlib.import_module("relinked")
    monkeypatch.delitem(sys.modules, "relinked")
    assert met == [module] and hasattr(module, "native") and arrivals not in sys.meta_path


def test_callback_is_called_at_once_for_an_imported_module() -> None:
    arrivals, met = ImportHooks(), []
    arrivals.when_imported("json", met.append)
    import json

    assert met == [json]


def test_close_drops_callbacks(module_dir: Path) -> None:
    arrivals, met = ImportHooks(), []
    arrivals.when_imported("arriving", met.append)
    arrivals.close()
    importlib.import_module("arriving")
    assert met == []


def test_callback_for_an_import_under_way_is_called_at_the_next_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Example: accelerate.accelerator imports torch, and the import of torch registers the callback."""
    arrivals, met = ImportHooks(), []
    (tmp_path / "halfway.py").write_text("import sys\nsys.ask()\nvalue = 3\n")
    (tmp_path / "later.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    ask = lambda: arrivals.when_imported("halfway", lambda module: met.append(module.value))  # noqa: E731
    monkeypatch.setattr(sys, "ask", ask, raising=False)
    for name in ("halfway", "later"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.import_module("halfway")
    importlib.import_module("later")
    assert met == [3]
    arrivals.close()
    assert arrivals not in sys.meta_path
