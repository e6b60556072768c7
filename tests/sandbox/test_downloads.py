"""A data set is downloaded only once. The server is on this machine, and counts as remote in this test."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.sandbox import overlay
from slipstream.sandbox.downloads import forget_downloads, kept_downloads
from slipstream.supervise.check import CheckOptions, supervise

SCRIPT = """
import os, pathlib, sys, urllib.request
os.makedirs("runs/first", exist_ok=False)
data = pathlib.Path("data/set")
if not data.exists():
    data.mkdir(parents=True)
    data.joinpath("a.bin").write_bytes(urllib.request.urlopen(sys.argv[1]).read())
    pathlib.Path("loose.bin").write_bytes(data.joinpath("a.bin").read_bytes())
    print("fetched")
pathlib.Path("runs/first/config").write_text("small")
assert data.joinpath("a.bin").stat().st_size == pathlib.Path("loose.bin").stat().st_size == 200_000
"""


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    requests: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"x" * 200_000)

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/data", requests
        running.shutdown()


@pytest.mark.skipif(overlay.probe()[0] is None, reason="no overlay")
def test_a_download_is_fetched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: tuple[str, list[str]]
) -> None:
    address, requests = server
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    order = CheckOptions(["train.py", address], count_loopback=True, least_kept_bytes=100_000)
    first = supervise(order)
    assert first.ending.exit_code == 0 and len(requests) == 1
    assert {item.path for item in kept_downloads(tmp_path)} == {str(tmp_path / "data"), str(tmp_path / "loose.bin")}
    assert sum("kept" in note for note in first.notes) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [".slipstream", "train.py"]

    second = supervise(order)
    assert second.ending.exit_code == 0 and len(requests) == 1  # runs/first did not exist for it
    assert second.written == ["runs/first/config"]

    (tmp_path / "data").mkdir()  # the real file system now has it, so the kept download is dropped
    assert [item.path for item in kept_downloads(tmp_path)] == [str(tmp_path / "loose.bin")]
    forget_downloads(tmp_path)
    assert kept_downloads(tmp_path) == []


def test_without_a_connection_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("open('big', 'wb').write(b'x' * 2_000_000)")
    supervise(CheckOptions(["train.py"]))
    assert kept_downloads(tmp_path) == []
