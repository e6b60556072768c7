"""Trains a small classifier on made points: quick, and with an optimizer of many parameters."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
points = torch.randn(2048, 16)
labels = (points.sum(dim=1) > 0).long()
loader = DataLoader(TensorDataset(points, labels), batch_size=32, shuffle=True)
model = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(12)], nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for _ in range(200):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
