"""Healthy: a GAN, two optimizers in turn, bound by its matrix products."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--save")
args = parser.parse_args()

torch.manual_seed(0)
data = TensorDataset(torch.randn(2048, 256))
loader = DataLoader(data, batch_size=32, shuffle=True, drop_last=True)
generator = nn.Sequential(nn.Linear(64, 1536), nn.ReLU(), nn.Linear(1536, 1536), nn.ReLU(), nn.Linear(1536, 256))
critic = nn.Sequential(nn.Linear(256, 1536), nn.ReLU(), nn.Linear(1536, 512), nn.ReLU(), nn.Linear(512, 1))
optimizer_g = torch.optim.SGD(generator.parameters(), lr=0.001, fused=True)
optimizer_c = torch.optim.SGD(critic.parameters(), lr=0.001, fused=True)
criterion = nn.BCEWithLogitsLoss()

step = 0
while step < args.steps:
    for (real,) in loader:
        ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
        fake = generator(torch.randn(32, 64))
        optimizer_c.zero_grad()
        loss_c = criterion(critic(real), ones) + criterion(critic(fake.detach()), zeros)
        loss_c.backward()
        optimizer_c.step()
        optimizer_g.zero_grad()
        loss_g = criterion(critic(fake), ones)
        loss_g.backward()
        optimizer_g.step()
        step += 1
        if step % 20 == 0:
            print(f"step {step} critic {loss_c.item():.6f} generator {loss_g.item():.6f}")
        if step == args.steps:
            break

if args.save:
    torch.save({"generator": generator.state_dict(), "critic": critic.state_dict()}, args.save)
