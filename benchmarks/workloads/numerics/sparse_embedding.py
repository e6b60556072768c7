"""Recommendation: large embeddings of which each batch touches a few rows, with sparse gradients for one of them."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(6)
USERS, ITEMS = 2000, 3000
taste, kind = torch.randn(USERS, 4), torch.randn(ITEMS, 4)
pairs = torch.stack([torch.randint(0, USERS, (6000,)), torch.randint(0, ITEMS, (6000,))], 1)
liked = ((taste[pairs[:, 0]] * kind[pairs[:, 1]]).sum(1) > 0).float()
loader = DataLoader(TensorDataset(pairs, liked), batch_size=64, shuffle=True)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(USERS, 16, sparse=True)
        self.items = nn.Embedding(ITEMS, 16)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, pairs):
        return self.mlp(torch.cat([self.users(pairs[:, 0]), self.items(pairs[:, 1])], 1)).squeeze(1)


model = Model()
sparse = torch.optim.SparseAdam(model.users.parameters(), lr=0.01)
dense = torch.optim.Adam([*model.items.parameters(), *model.mlp.parameters()], lr=0.003, weight_decay=1e-4)
criterion = nn.BCEWithLogitsLoss()
for epoch in range(10):
    for batch, target in loader:
        loss = criterion(model(batch), target)
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
