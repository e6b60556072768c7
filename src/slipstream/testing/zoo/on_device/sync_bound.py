"""The host reads the loss, and then writes a log for 80 ms, while the device has nothing to do."""

import time

import torch
from busy import BusyLayer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
history = []
model = nn.Sequential(nn.Linear(64, 32), BusyLayer(2, 4), nn.Linear(32, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(4096, 64), torch.randint(0, 10, (4096,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
for epoch in range(1000):
    for images, labels in loader:
        images, labels = images.to("cuda"), labels.to("cuda")
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        time.sleep(0.08)
    print(epoch, loss.item())
