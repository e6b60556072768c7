"""Building the simulated device. Its behaviour is tested in `tests/device`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.testing.simulated_cuda import BuildError, Settings, build, environment


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)


@pytest.mark.usefixtures("no_compiler")
def test_a_missing_compiler_is_named() -> None:
    with pytest.raises(BuildError, match="no C\\+\\+ compiler"):
        build()


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(("options", "status"), [([], 2), (["--skip-without-compiler"], 0)])
def test_without_a_compiler_the_command_says_so(options: list[str], status: int) -> None:
    command = [sys.executable, "-m", "slipstream.testing.simulated_cuda", *options, "-c", "print('ran')"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == status
    assert done.stderr == (
        "The simulated CUDA device is not available: there is no C++ compiler (c++, g++ or clang++) on this machine.\n"
    )
    assert not done.stdout


def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "failing"
    compiler.write_text("#!/bin/sh\necho 'device.cpp:1: error: no such thing' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    with pytest.raises(BuildError, match=r"cannot compile it: device\.cpp:1: error: no such thing"):
        build()


def test_settings_travel_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    found = environment(Path("/cache/key/lib.so"), Settings(memory_mb=512, kernel_us=2.5, poison=False))
    assert found["PYTHONPATH"] == f"/cache/key{os.pathsep}/theirs"
    assert found["SIMULATED_CUDA_LIBRARY"] == "/cache/key/lib.so"
    assert (found["SIMULATED_CUDA_MEMORY_MB"], found["SIMULATED_CUDA_POISON"]) == ("512", "0")
