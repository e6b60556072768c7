"""A two-layer LSTM language model on made text, with truncated backpropagation and clipping."""

import torch
from torch import nn

torch.manual_seed(1111)
VOCABULARY, BATCH, LENGTH = 64, 16, 20
text = (torch.arange(40_000) * 31 % 61 + torch.randint(0, 3, (40_000,))) % VOCABULARY
columns = text[: len(text) // BATCH * BATCH].view(BATCH, -1).t().contiguous()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(VOCABULARY, 64)
        self.rnn = nn.LSTM(64, 64, 2, dropout=0.2)
        self.decoder = nn.Linear(64, VOCABULARY)

    def forward(self, x, hidden):
        y, hidden = self.rnn(self.drop(self.encoder(x)), hidden)
        return self.decoder(self.drop(y)), hidden


model = Model()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
for epoch in range(3):
    hidden = (torch.zeros(2, BATCH, 64), torch.zeros(2, BATCH, 64))
    for start in range(0, len(columns) - LENGTH - 1, LENGTH):
        x, y = columns[start : start + LENGTH], columns[start + 1 : start + LENGTH + 1]
        hidden = tuple(part.detach() for part in hidden)
        optimizer.zero_grad()
        output, hidden = model(x, hidden)
        loss = criterion(output.view(-1, VOCABULARY), y.reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
    print(f"epoch {epoch} | loss {loss.item():5.2f} | ppl {loss.exp().item():8.2f}")
