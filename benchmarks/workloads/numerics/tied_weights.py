"""A small model of made digits whose output layer shares the weights of its embedding, with attention written by hand."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SYMBOLS, LENGTH, WIDTH, HEADS = 80, 30, 48, 6
torch.manual_seed(14)
stream = (torch.arange(30_000).pow(2) % 73 + torch.randint(0, 5, (30_000,))) % SYMBOLS
windows = stream.unfold(0, LENGTH + 1, 9)
loader = DataLoader(TensorDataset(windows), batch_size=8, shuffle=True, drop_last=True)
later = torch.full((LENGTH, LENGTH), -torch.inf).triu(1)


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.gather = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(3 * WIDTH, WIDTH))

    def forward(self, state):
        normed = self.before(state)
        query, key, value = (part(normed).unflatten(-1, (HEADS, -1)) for part in (self.query, self.key, self.value))
        scores = torch.einsum("nihd,njhd->nhij", query, key) * (WIDTH / HEADS) ** -0.5 + later
        state = state + self.gather(torch.einsum("nhij,njhd->nihd", scores.softmax(-1), value).flatten(2))
        return state + self.wide(self.between(state))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, WIDTH)
        self.places = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.mixers = nn.Sequential(Mixer(), Mixer(), Mixer(), nn.LayerNorm(WIDTH))
        self.output = nn.Linear(WIDTH, SYMBOLS)
        nn.init.normal_(self.symbols.weight, std=0.1)
        self.output.weight = self.symbols.weight

    def forward(self, symbols):
        return self.output(self.mixers(self.symbols(symbols) + self.places))


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
for epoch in range(5):
    for number, (window,) in enumerate(loader):
        scores = model(window[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), window[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        if number % 60 == 0:
            print(f"epoch {epoch}, batch {number}: loss {loss.item():.4f}")
