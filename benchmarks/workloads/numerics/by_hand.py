"""A perceptron whose weights are updated by hand, without an optimizer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(4000, 32)
y = torch.sin(x[:, :4].sum(1, keepdim=True)) + 0.1 * torch.randn(4000, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 1))
for epoch in range(10):
    for inputs, targets in loader:
        model.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.05 * parameter.grad
    print(f"epoch {epoch}: loss {loss.item():.4f}")
