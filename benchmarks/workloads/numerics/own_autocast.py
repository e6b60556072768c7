"""A convnet with batch norm whose script computes in bf16 autocast by itself."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(11)
patterns = torch.randn(10, 3, 16, 16)
labels = torch.randint(0, 10, (1000,))
loader = DataLoader(TensorDataset(patterns[labels] + 2 * torch.randn(1000, 3, 16, 16), labels), batch_size=32, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.GELU(), nn.AdaptiveAvgPool2d(2),
    nn.Flatten(), nn.Linear(128, 10),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for epoch in range(10):
    for x, y in loader:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
