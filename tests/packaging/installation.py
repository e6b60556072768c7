"""Builds the wheel and installs it into an environment that has its declared dependencies and nothing else.

The dependencies are not downloaded. They are linked from the environment that runs the tests, starting from the
`Requires-Dist` lines of the wheel and following those of every distribution. An import of something that is not
declared therefore fails here as it fails for a user.
"""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300  # a bound for a command that hangs; importing torch alone can take 20 s on a busy machine

Done = subprocess.CompletedProcess[str]


class Installation:
    """An environment, and a folder in which its commands run."""

    def __init__(self, venv: Path, folder: Path) -> None:
        self.python = venv / "bin" / "python"
        self.folder = folder
        self._command = venv / "bin" / "slipstream"
        # The environment must not find the source tree, and commands keep their files beside it.
        self._variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self._variables |= {"SLIPSTREAM_CACHE": str(venv.parent / "cache"), "OMP_NUM_THREADS": "1"}

    def slipstream(self, *arguments: str, folder: Path | None = None) -> Done:
        """Run a command in `folder`, or in the installation's own."""
        return self._run([str(self._command), *arguments], folder or self.folder)

    def run_python(self, *arguments: str) -> Done:
        return self._run([str(self.python), *arguments], self.folder)

    def _run(self, command: list[str], folder: Path) -> Done:
        return subprocess.run(
            command, cwd=folder, env=self._variables, capture_output=True, text=True, timeout=TIMEOUT_S
        )


class Measured(NamedTuple):
    """The results of the commands that made the sessions."""

    check: Done
    tune: Done


def build_wheel(folder: Path) -> Path:
    """Build from a copy: a `build/` folder left in the clone would put deleted modules into the wheel."""
    source = folder / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    _run_pip("wheel", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", str(folder), str(source))
    [wheel] = folder.glob("*.whl")
    return wheel


def install(wheel: Path, venv: Path, folder: Path, *, without: frozenset[str] = frozenset()) -> Installation:
    """The wheel and its dependencies, except those in `without` and what only they need."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    installation = Installation(venv, folder)
    _run_pip("--python", str(installation.python), "install", "--no-deps", "--no-index", str(wheel))
    answer = installation.run_python("-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    site_packages = Path(answer.stdout.strip())
    for distribution in dependencies(requirements_of(wheel), without):
        _link(distribution, site_packages)
    return installation


def requirements_of(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])


def dependencies(requirements: list[str], without: frozenset[str]) -> list[metadata.Distribution]:
    """All distributions that pip would install for `requirements`, without extras that nobody asked for."""
    found: dict[str, metadata.Distribution] = {}
    visited: set[tuple[str, str]] = set()
    remaining = [(line, "") for line in requirements]
    while remaining:
        line, extra = remaining.pop()
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        if name in without or (requirement.marker is not None and not requirement.marker.evaluate({"extra": extra})):
            continue
        distribution = found.setdefault(name, metadata.distribution(name))
        for wanted in ("", *requirement.extras):
            if (name, wanted) not in visited:
                visited.add((name, wanted))
                remaining += [(needed, wanted) for needed in distribution.requires or []]
    return list(found.values())


def _link(distribution: metadata.Distribution, site_packages: Path) -> None:
    """Link every top-level file and folder that belongs to the distribution. Its scripts are left out."""
    for name in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
        link = site_packages / name
        if not link.exists():  # several distributions can share a namespace package
            link.symlink_to(Path(str(distribution.locate_file(name))).resolve())


def _run_pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
