"""Gradient accumulation over four batches, group norm, cosine schedule, label smoothing."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(21)
patterns = torch.randn(5, 3, 12, 12)
labels = torch.randint(0, 5, (4000,))
loader = DataLoader(TensorDataset(patterns[labels] + 2 * torch.randn(4000, 3, 12, 12), labels), batch_size=8, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU(),
    nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(),
    nn.Linear(144, 5),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
for epoch in range(3):
    for number, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / 4
        loss.backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    print(f"epoch {epoch}: loss {4 * loss.item():.4f}")
