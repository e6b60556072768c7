"""A script that uses as many seams as possible without a GPU. This is not a test."""

import io
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        return self.layers(x)


def train():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
    model = Net()
    other = torch.compile(Net(), backend="eager")
    other(torch.randn(4, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for num_workers in (0, 1):
        loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=num_workers)
        for _ in range(2):
            for x, y in loader:
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            scheduler.step()
    for wrong in (lambda: model(torch.randn(8, 9)), lambda: torch.randn(3, requires_grad=True).backward()):
        try:
            wrong()
        except RuntimeError as error:
            print("refused", type(error).__name__)
    torch.save(model.state_dict(), io.BytesIO())
    print("loss", loss.item())
    return model.state_dict()


if __name__ == "__main__":
    torch.save(train(), sys.argv[1])
