"""Planted: a Lightning module trained from a loader without workers."""

import argparse
import logging
import warnings

import lightning
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Sounds(Dataset):
    def __init__(self):
        rng = np.random.default_rng(0)
        self.waves = rng.standard_normal((16, 262144)).astype(np.float32)

    def __len__(self):
        return 2048

    def __getitem__(self, index):
        spectrum = np.abs(np.fft.rfft(self.waves[index % 16].reshape(256, 1024), axis=1)).mean(axis=0)
        return np.log1p(spectrum[:256]).astype(np.float32), index % 10


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        if index % 20 == 0:
            print(f"batch {index} loss {loss.item():.6f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--save")
    args = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    loader = DataLoader(Sounds(), batch_size=8, shuffle=True)  # <- planted
    model = Classifier()
    trainer = lightning.Trainer(
        max_steps=args.steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
