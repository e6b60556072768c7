"""Hundreds of tiny operators, which the host launches more slowly than the device computes them."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 16), nn.Linear(16, 10)

    def forward(self, values):
        state = torch.zeros(16, 16, device="cuda")
        for at in range(128):
            state = torch.tanh(self.inner(state) + values[:, at : at + 1])
        return self.outer(state)


torch.manual_seed(0)
model = Recurrent().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.randn(4096, 128), torch.randint(0, 10, (4096,))), batch_size=16, shuffle=True)
for epoch in range(1000):
    for images, labels in loader:
        images, labels = images.to("cuda"), labels.to("cuda")
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
