"""A graph network that sums the messages of neighbours with index_add, on one made graph, in full batches."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(42)
NODES, EDGES, CLASSES = 1000, 6000, 6
labels = torch.randint(0, CLASSES, (NODES,))
features = F.one_hot(labels, CLASSES).float() @ torch.randn(CLASSES, 64) + 3 * torch.randn(NODES, 64)
source, target = torch.randint(0, NODES, (2, EDGES))
is_train = torch.rand(NODES) < 0.6


class Layer(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.own, self.neighbours = nn.Linear(inside, outside), nn.Linear(inside, outside, bias=False)

    def forward(self, x):
        received = torch.zeros_like(x).index_add(0, target, x[source])
        degree = torch.zeros(NODES).index_add(0, target, torch.ones(EDGES)).clamp(min=1)
        return self.own(x) + self.neighbours(received / degree[:, None])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Layer(64, 32), Layer(32, CLASSES)

    def forward(self, x):
        x = F.dropout(F.relu(self.first(x)), 0.5, self.training)
        return F.log_softmax(self.second(x), dim=1)


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for epoch in range(200):
    model.train()
    optimizer.zero_grad()
    loss = F.nll_loss(model(features)[is_train], labels[is_train])
    loss.backward()
    optimizer.step()
    if epoch % 10 == 9:
        model.eval()
        with torch.no_grad():
            accuracy = (model(features).argmax(1) == labels)[~is_train].float().mean().item()
        print(f"epoch {epoch}: loss {loss.item():.4f}, validation accuracy {accuracy:.4f}")
