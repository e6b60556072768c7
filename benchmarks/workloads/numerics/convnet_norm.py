"""A convnet whose convolutions have biases before batch norm, and a linear head, on small made images."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
patterns = torch.randn(10, 1, 28, 28)
labels = torch.randint(0, 10, (2000,))
images = patterns[labels] + 1.5 * torch.randn(2000, 1, 28, 28)
loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.layer2 = nn.Sequential(nn.Conv2d(8, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        self.fc = nn.Linear(7 * 7 * 16, 10)

    def forward(self, x):
        return self.fc(self.layer2(self.layer1(x)).flatten(1))


model = ConvNet()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
for epoch in range(5):
    for images, labels in loader:
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
