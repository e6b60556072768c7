"""A deep and narrow language model on bytes of made sentences. Compiling so many layers takes long; a step does not."""

import argparse
import random

import torch
from torch import nn

WIDTH, HEADS, CONTEXT, BATCH = 96, 4, 64, 8
WORDS = [
    "the",
    "a",
    "small",
    "old",
    "quick",
    "river",
    "stone",
    "bird",
    "house",
    "sees",
    "finds",
    "leaves",
    "near",
    "under",
]


class Rescale(nn.Module):
    """Divides each vector by its root mean square."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return self.gain * x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6)


class Mixing(nn.Module):
    """Attention in which the distance of two positions lowers their weight, by another slope for each head."""

    def __init__(self):
        super().__init__()
        self.inward = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.outward = nn.Linear(WIDTH, WIDTH, bias=False)
        place = torch.arange(CONTEXT)
        distance = (place[:, None] - place[None, :]).float()
        slopes = torch.tensor([2.0 ** -(2 * head + 1) for head in range(HEADS)])
        bias = -slopes[:, None, None] * distance
        self.register_buffer("bias", bias.masked_fill(distance < 0, float("-inf")))

    def forward(self, x):
        batch, length, _ = x.shape
        query, key, value = self.inward(x).reshape(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = query @ key.mT / query.shape[-1] ** 0.5 + self.bias
        mixed = scores.softmax(dim=-1) @ value
        return self.outward(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.content = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.back = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.back(nn.functional.silu(self.gate(x)) * self.content(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_mixing, self.before_gated = Rescale(), Rescale()
        self.mixing, self.gated = Mixing(), Gated()

    def forward(self, x):
        x = x + self.mixing(self.before_mixing(x))
        return x + self.gated(self.before_gated(x))


class DeepModel(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(depth)])
        self.last = Rescale()
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.last(x) @ self.embedding.weight.T


def made_text(num_words):
    draw = random.Random(0)
    text = " ".join(draw.choice(WORDS) for _ in range(num_words))
    return torch.tensor(list(text.encode()))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--depth", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(0)
    text = made_text(50_000)
    windows = text.unfold(0, CONTEXT + 1, 1)
    model = DeepModel(args.depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    for step in range(args.steps):
        chosen = windows[torch.randint(len(windows), (BATCH,))]
        logits = model(chosen[:, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, 256), chosen[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 200 == 0:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
