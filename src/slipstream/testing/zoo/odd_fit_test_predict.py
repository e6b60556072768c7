"""Odd: Lightning fits with validation, tests and predicts in one process."""

import argparse
import logging
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 10))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def validation_step(self, batch, index):
        x, y = batch
        self.log("held_out", nn.functional.cross_entropy(self(x), y))

    def test_step(self, batch, index):
        x, y = batch
        self.log("test", nn.functional.cross_entropy(self(x), y))

    def predict_step(self, batch, index):
        return self(batch[0]).argmax(1)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.001)


def make_loader(size, **options):
    return DataLoader(TensorDataset(torch.randn(size, 128), torch.randint(0, 10, (size,))), batch_size=32, **options)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--save")
    args = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    model = Classifier()
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, make_loader(1280, shuffle=True), make_loader(128))
    print("held out", trainer.callback_metrics["held_out"].item())
    (result,) = trainer.test(model, make_loader(128), verbose=False)
    print("test", result["test"])
    predictions = torch.cat(trainer.predict(model, make_loader(128)))
    print("predicted", predictions[:10].tolist())
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
