"""A convnet without normalisation, with dropout and weight decay; prints the accuracy on held-out images."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
patterns = torch.randn(10, 3, 16, 16)


def made(count):
    labels = torch.randint(0, 10, (count,))
    return TensorDataset(patterns[labels] + 2 * torch.randn(count, 3, 16, 16), labels)


train_loader = DataLoader(made(640), batch_size=32, shuffle=True)
test_loader = DataLoader(made(256), batch_size=128)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = self.dropout(x.flatten(1))
        return F.log_softmax(self.fc2(self.dropout(F.relu(self.fc1(x)))), dim=1)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
for epoch in range(10):
    model.train()
    for data, target in train_loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            correct += (model(data).argmax(1) == target).sum().item()
    print(f"Epoch {epoch} Loss: {loss.item():.4f} Validation accuracy: {correct / 256:.4f}")
