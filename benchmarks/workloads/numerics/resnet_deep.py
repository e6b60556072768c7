"""A residual net of 25 convolutions, each after batch norm, with momentum and weight decay."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(12)
textures = torch.randn(8, 3, 16, 16)
kinds = torch.randint(0, 8, (1200,))
pictures = textures[kinds] + 2 * torch.randn(1200, 3, 16, 16)
loader = DataLoader(TensorDataset(pictures, kinds), batch_size=16, shuffle=True, drop_last=True)


def layer(width):
    return [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1, bias=False)]


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.branch = nn.Sequential(*layer(width), *layer(width))

    def forward(self, x):
        return x + self.branch(x)


def stage(width, before):
    smaller = nn.Conv2d(before, width, 2, stride=2, bias=False)
    return [smaller, *(Residual(width) for _ in range(6))]


model = nn.Sequential(
    *stage(12, 3), *stage(24, 12), nn.BatchNorm2d(24), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(24, 8)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.95, weight_decay=1e-3, nesterov=True)
for epoch in range(10):
    total = 0.0
    for x, kind in loader:
        loss = nn.functional.cross_entropy(model(x), kind)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
    print(f"epoch {epoch}: mean loss {total / len(loader):.4f}")
