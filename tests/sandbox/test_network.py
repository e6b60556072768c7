"""A process enters a real network namespace. Where the system allows none, the commands refuse with a sentence."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.cli.group import slipstream
from slipstream.sandbox import mounts, network

OBSTACLE = network.obstacle()


@pytest.mark.skipif(bool(OBSTACLE), reason=OBSTACLE or "network namespaces")
@pytest.mark.parametrize("is_root_of_a_container", [False, True])
def test_only_loopback_is_left(is_root_of_a_container: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_root_of_a_container:
        enter = mounts.enter_network

        def refuse_own(*, own_user: bool) -> None:
            if not own_user:
                raise PermissionError(1, "unshare: Operation not permitted")
            enter(own_user=True)

        monkeypatch.setattr(mounts, "enter_network", refuse_own)
    user = os.geteuid()

    def act() -> None:
        network.enter()
        assert os.geteuid() == user
        assert [name for _, name in socket.if_nameindex() if name != "lo"] in ([], ["sit0"], ["tunl0", "sit0"])
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
        with pytest.raises(OSError, match="unreachable"):
            socket.create_connection(("192.0.2.1", 80), timeout=5)

    assert mounts.fault_in_child(act) == ""


@pytest.mark.parametrize("command", ["check", "tune"])
def test_a_system_without_network_namespaces_is_refused(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")

    def refuse(*, own_user: bool) -> None:
        raise PermissionError(1, "unshare: Operation not permitted")

    monkeypatch.setattr(mounts, "enter_network", refuse)
    done = CliRunner().invoke(slipstream, [command, "--no-network", "train.py"])
    assert done.exit_code == 2 and "--no-network is not possible here: " in done.output
    assert "unshare: Operation not permitted" in done.output


TRAIN = """
import socket
import torch
try:
    socket.create_connection(("192.0.2.1", 80), timeout=5)
except OSError as error:
    print(error)
weight = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(50):
    weight.square().sum().backward()
    optimizer.step()
"""


@pytest.mark.skipif(bool(OBSTACLE), reason=OBSTACLE or "network namespaces")
@pytest.mark.parametrize("overlay", [[], ["--no-overlay"]])
def test_a_check_without_a_network(tmp_path: Path, overlay: list[str]) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "slipstream", "check", "--no-network", *overlay, "--seconds", "2", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "[Errno 101] Network is unreachable" in done.stdout, done.stderr
