"""A batch takes 32 ms to load, and the device computes for 6 ms."""

import time

import torch
from busy import BusyLayer
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.randn(64), index % 10


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), BusyLayer(2, 4), nn.Linear(32, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = Slow()
loader = DataLoader(data, batch_size=16, shuffle=True)
for epoch in range(1000):
    for images, labels in loader:
        images, labels = images.to("cuda"), labels.to("cuda")
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
