"""A batch of 2 MB is copied from pageable memory, and the device computes for 4 ms. The bus is slow."""

import torch
from busy import BusyLayer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32768, 32), BusyLayer(1, 3), nn.Linear(32, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(512, 32768), torch.randint(0, 10, (512,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
for epoch in range(1000):
    for images, labels in loader:
        images, labels = images.to("cuda"), labels.to("cuda")
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
