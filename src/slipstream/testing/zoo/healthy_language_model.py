"""Healthy: a small transformer on tokens in memory, with the fused optimizer."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--save")
args = parser.parse_args()

block_size, batch_size, vocab, width, heads = 64, 16, 256, 128, 4
torch.manual_seed(0)
data = torch.randint(0, vocab, (100_000,))


def get_batch():
    starts = torch.randint(len(data) - block_size - 1, (batch_size, 1))
    tokens = data[starts + torch.arange(block_size + 1)]
    return tokens[:, :-1], tokens[:, 1:]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(block_size, width)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens, targets):
        x = self.blocks(self.tokens(tokens) + self.places.weight)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


model = LanguageModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, fused=True)
for step in range(args.steps):
    x, y = get_batch()
    loss = model(x, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"iter {step}: loss {loss.item():.4f}")

if args.save:
    torch.save(model.state_dict(), args.save)
