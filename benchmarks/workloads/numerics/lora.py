"""Low-rank adapters on a frozen perceptron: the second factor begins at zero, so the first has no gradient at first."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(8)


class Adapted(nn.Module):
    def __init__(self, inside, outside, rank=4):
        super().__init__()
        self.frozen = nn.Linear(inside, outside)
        self.frozen.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, inside) / inside**0.5)
        self.up = nn.Parameter(torch.zeros(outside, rank))

    def forward(self, x):
        return self.frozen(x) + x @ self.down.t() @ self.up.t()


model = nn.Sequential(Adapted(64, 128), nn.ReLU(), nn.LayerNorm(128), Adapted(128, 128), nn.ReLU(), Adapted(128, 10))
centres = torch.randn(10, 64)
labels = torch.randint(0, 10, (2000,))
loader = DataLoader(TensorDataset(centres[labels] + torch.randn(2000, 64), labels), batch_size=32, shuffle=True)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
for epoch in range(5):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
