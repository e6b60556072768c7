"""Odd: two optimizers, five critic updates to one of the generator, and a gradient penalty (double backward)."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--n_critic", type=int, default=5)
parser.add_argument("--save")
args = parser.parse_args()

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(1280, 64)), batch_size=32, shuffle=True)
generator = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 64))
critic = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-4)
optimizer_c = torch.optim.Adam(critic.parameters(), lr=1e-4)


def penalty(real, fake):
    mix = torch.rand(len(real), 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_()
    (gradient,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return ((gradient.norm(dim=1) - 1) ** 2).mean()


step = 0
while step < args.steps:
    for (real,) in loader:
        fake = generator(torch.randn(len(real), 16)).detach()
        loss_c = critic(fake).mean() - critic(real).mean() + 10 * penalty(real, fake)
        optimizer_c.zero_grad()
        loss_c.backward()
        optimizer_c.step()
        step += 1
        if step % args.n_critic == 0:
            loss_g = -critic(generator(torch.randn(len(real), 16))).mean()
            optimizer_g.zero_grad()
            loss_g.backward()
            optimizer_g.step()
            print(f"step {step} critic {loss_c.item():.6f} generator {loss_g.item():.6f}")
        if step == args.steps:
            break

if args.save:
    torch.save(generator.state_dict(), args.save)
