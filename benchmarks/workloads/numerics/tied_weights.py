"""A small language model whose output layer shares the weights of its embedding, with attention written by hand."""

import math

import torch
from torch import nn

VOCABULARY, CONTEXT, WIDTH = 96, 32, 48
torch.manual_seed(1337)
text = (torch.arange(50_000) * 7919 % 89 + torch.randint(0, 4, (50_000,))) % VOCABULARY


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))
        self.register_buffer("mask", torch.tril(torch.ones(CONTEXT, CONTEXT)))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, 4, c // 4).transpose(1, 2) for part in self.qkv(self.ln_1(x)).split(c, dim=2))
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(self.mask[:t, :t] == 0, float("-inf")).softmax(-1)
        x = x + self.proj((att @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln_2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens):
        return self.lm_head(self.ln_f(self.blocks(self.wte(tokens) + self.wpe.weight[: tokens.shape[1]])))


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
for step in range(2000):
    starts = torch.randint(len(text) - CONTEXT - 1, (8,))
    x = torch.stack([text[i : i + CONTEXT] for i in starts])
    y = torch.stack([text[i + 1 : i + CONTEXT + 1] for i in starts])
    loss = nn.functional.cross_entropy(model(x).view(-1, VOCABULARY), y.view(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 50 == 0:
        print(f"iter {step}: loss {loss.item():.4f}")
