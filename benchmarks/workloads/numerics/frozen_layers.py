"""Fine-tuning: the first layers, with batch norm in evaluation mode, are frozen; the head is new."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)
backbone = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
)  # fmt: skip
for parameter in backbone.parameters():
    parameter.requires_grad = False


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(nn.Linear(384, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10))

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        return self.head(self.backbone(x))


patterns = torch.randn(10, 3, 16, 16)
labels = torch.randint(0, 10, (1500,))
data = TensorDataset(patterns[labels] + torch.randn(1500, 3, 16, 16), labels)
loader = DataLoader(data, batch_size=32, shuffle=True)
model = Net().train()
optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), lr=0.01, momentum=0.9)
for epoch in range(10):
    right = 0
    for x, y in loader:
        optimizer.zero_grad()
        output = model(x)
        loss = nn.functional.cross_entropy(output, y)
        loss.backward()
        optimizer.step()
        right += (output.argmax(1) == y).sum().item()
    print(f"train Loss: {loss.item():.4f} Acc: {right / len(data):.4f}")
