"""The update of many small tensors, one by one, takes longer than the rest of the step."""

import torch
from busy import BusyLayer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
small = [nn.Parameter(torch.randn(16, device="cuda")) for _ in range(150)]
model = nn.Sequential(nn.Linear(64, 32), BusyLayer(2, 4), nn.Linear(32, 10)).cuda()
optimizer = torch.optim.AdamW([*model.parameters(), *small], lr=1e-3, foreach=False)
data = TensorDataset(torch.randn(4096, 64), torch.randint(0, 10, (4096,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
for epoch in range(1000):
    for images, labels in loader:
        images, labels = images.to("cuda"), labels.to("cuda")
        loss = nn.functional.cross_entropy(model(images), labels) + torch.cat(small).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
