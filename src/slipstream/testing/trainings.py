"""Tiny but real trainings, written as users write them.

They are a convnet with batch norm, a transformer with manual attention, a GAN with two optimizers, and a convnet on
pictures that workers read. The trainings do not import any technique. Each training returns a `TrainingOutcome`.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import io
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

NUM_STEPS = 4
SEED = 5
NUM_PICTURES = 24


class TrainingOutcome:
    """The result of a training: losses, models, optimizers, the loader, and a checkpoint in the form of a file."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.models: dict[str, nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.loader: DataLoader[Any] | None = None
        self.checkpoint = b""

    def save(self) -> TrainingOutcome:
        file = io.BytesIO()
        torch.save({name: thing.state_dict() for name, thing in self._parts()}, file)
        self.checkpoint = file.getvalue()
        return self

    def resume(self, checkpoint: bytes) -> None:
        states = torch.load(io.BytesIO(checkpoint), weights_only=True)
        for name, thing in self._parts():
            thing.load_state_dict(states[name])

    def _parts(self) -> list[tuple[str, Any]]:
        return [*self.models.items(), *self.optimizers.items()]

    def weights(self) -> dict[str, torch.Tensor]:
        return {
            f"{name}.{key}": value.detach().cpu()
            for name, model in self.models.items()
            for key, value in model.state_dict().items()
        }


Training = Callable[..., TrainingOutcome]


def convnet(device: str = "cpu", checkpoint: bytes = b"", model: nn.Module | None = None) -> TrainingOutcome:
    """Trains on images from a loader, with momentum and clipped gradients, and evaluates at the end."""
    torch.manual_seed(SEED)
    images, labels = torch.randn(32, 3, 12, 12), torch.randint(0, 4, (32,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)
    out = TrainingOutcome()
    net = (
        model
        or nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(200, 4),
        )
    ).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    out.models, out.optimizers, out.loader = {"net": net}, {"sgd": optimizer}, loader
    if checkpoint:
        out.resume(checkpoint)
    for x, y in loader:
        loss: Any = functional.cross_entropy(net(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        out.losses.append(loss.item())
    net.eval()
    with torch.no_grad():
        out.losses.append(functional.cross_entropy(net(images.to(device)), labels.to(device)).item())
    return out.save()


class ManualAttention(nn.Module):
    """Causal attention, written as in nanoGPT."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width, bias=False)  # The gradient of the keys' bias would be pure rounding.
        self.register_buffer("causal", torch.tril(torch.ones(length, length)))

    def forward(self, x: torch.Tensor) -> Any:
        size, length, width = x.size()
        q, k, v = (
            part.view(size, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.project(x).split(width, dim=2)
        )
        weights = (q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5
        causal: Any = self.causal
        weights = weights.masked_fill(causal[:length, :length] == 0, float("-inf"))
        weights = functional.softmax(weights, dim=-1)
        return (weights @ v).transpose(1, 2).reshape(size, length, width)


class TransformerBlock(nn.Module):
    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), ManualAttention(width, 4, length)
        self.mlp = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        result: torch.Tensor = x + self.mlp(x)
        return result


class SmallTransformer(nn.Module):
    """A transformer with three equal blocks, because checkpointing needs equal blocks."""

    def __init__(self, words: int = 40, width: int = 16, length: int = 10) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(TransformerBlock(width, length) for _ in range(3))
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.head(x)
        return result


def transformer(device: str = "cpu", checkpoint: bytes = b"", model: nn.Module | None = None) -> TrainingOutcome:
    """Trains on tokens without a loader. The script accumulates the gradients of two micro-batches for each update."""
    torch.manual_seed(SEED)
    out = TrainingOutcome()
    net = (model or SmallTransformer()).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    out.models, out.optimizers = {"net": net}, {"adamw": optimizer}
    if checkpoint:
        out.resume(checkpoint)
    for _ in range(NUM_STEPS):
        for _ in range(2):
            tokens = torch.randint(0, 40, (4, 10)).to(device)
            loss: Any = functional.cross_entropy(net(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten()) / 2
            loss.backward()
            out.losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return out.save()


def gan(device: str = "cpu", checkpoint: bytes = b"", model: nn.Module | None = None) -> TrainingOutcome:
    """Trains two models with two optimizers. Each step calls the discriminator three times, once on detached inputs."""
    torch.manual_seed(SEED)
    out = TrainingOutcome()
    maker = (model or nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))).to(device)
    judge = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).to(device)
    first = torch.optim.Adam(maker.parameters(), lr=0.01)
    second = torch.optim.Adam(judge.parameters(), lr=0.01)
    out.models, out.optimizers = {"maker": maker, "judge": judge}, {"first": first, "second": second}
    if checkpoint:
        out.resume(checkpoint)
    for _ in range(NUM_STEPS):
        real, noise = torch.randn(16, 8).to(device) + 1, torch.randn(16, 4).to(device)
        fake = maker(noise)
        second.zero_grad()
        loss: Any = functional.softplus(-judge(real)).mean() + functional.softplus(judge(fake.detach())).mean()
        loss.backward()
        second.step()
        first.zero_grad()
        fooled: Any = functional.softplus(-judge(fake)).mean()
        fooled.backward()
        first.step()
        out.losses += [loss.item(), fooled.item()]
    return out.save()


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        import numpy as np
        from PIL import Image

        image = Image.open(self.files[index]).convert("RGB").resize((24, 24), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255, index % 4


@functools.cache
def _picture_files() -> list[Path]:
    """Returns the picture files. They are created once per process."""
    from slipstream.testing.photographs import make_photographs

    folder = Path(tempfile.mkdtemp(prefix="slipstream-pictures-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return make_photographs(folder, NUM_PICTURES, width=160, height=120)


def pictures(device: str = "cpu", checkpoint: bytes = b"", model: nn.Module | None = None) -> TrainingOutcome:
    """Trains for two epochs on photographs that two workers read from files."""
    torch.manual_seed(SEED)
    loader = DataLoader(Pictures(_picture_files()), batch_size=2, shuffle=True, num_workers=2)
    out = TrainingOutcome()
    net = (model or nn.Sequential(nn.Conv2d(3, 4, 5, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(196, 4))).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    out.models, out.optimizers, out.loader = {"net": net}, {"sgd": optimizer}, loader
    if checkpoint:
        out.resume(checkpoint)
    for _ in range(2):
        for x, y in loader:
            loss: Any = functional.cross_entropy(net(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            out.losses.append(loss.item())
    return out.save()


TRAININGS: dict[str, Training] = {"convnet": convnet, "transformer": transformer, "gan": gan}
if importlib.util.find_spec("PIL") is not None:
    TRAININGS["pictures"] = pictures
