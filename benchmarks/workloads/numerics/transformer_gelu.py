"""A transformer encoder with GELU and dropout that classifies made sequences, with warm-up and clipping."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
words = torch.randint(0, 500, (3000, 32))
labels = (words < 50).sum(1).clamp(max=4)
loader = DataLoader(TensorDataset(words, labels), batch_size=16, shuffle=True, drop_last=True)


class Classifier(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(500, width)
        self.position = nn.Parameter(torch.zeros(32, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, 5)

    def forward(self, words):
        return self.head(self.encoder(self.embed(words) + self.position).mean(1))


model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
for epoch in range(10):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
