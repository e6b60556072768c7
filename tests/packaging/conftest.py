"""The wheel, built once, and two environments with it: one as `pip install .` makes it, one without torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # pytest imports test modules without a package

from installation import Installation, Measured, build_wheel, install

TRAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(256, 64), torch.randn(256, 1))
loader = DataLoader(data, batch_size=16, shuffle=True)
for epoch in range(20):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("done")
"""

RECIPE = """
version = 1

[recipe]
fused_optimizer = true
"""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a training script and a recipe for it."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "train.py").write_text(TRAIN)
    (folder / "recipe.toml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="session")
def installed(wheel: Path, project: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The wheel and its dependencies, without any extra."""
    return install(wheel, tmp_path_factory.mktemp("installed") / "venv", project)


@pytest.fixture(scope="session")
def torchless(wheel: Path, project: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The wheel and its dependencies without torch and without what only torch needs."""
    return install(wheel, tmp_path_factory.mktemp("torchless") / "venv", project, without=frozenset({"torch"}))


@pytest.fixture(scope="session")
def measured(installed: Installation) -> Measured:
    """`check` and then `tune` ran in the project, and their sessions are saved there."""
    check = installed.slipstream("check", "--steps", "60", "train.py")
    # A script may take ten times the length of the check to start. Less than 5 s would leave it too little time.
    tune = installed.slipstream("tune", "--seconds", "5", "--budget", "5s", "--only", "fused_optimizer", "train.py")
    return Measured(check, tune)
