"""A WGAN with gradient penalty: five updates of the critic for one of the generator."""

import torch
from torch import autograd, nn

torch.manual_seed(5)
centres = torch.randn(8, 32)


def real_batch(count=64):
    return centres[torch.randint(0, 8, (count,))] + 0.1 * torch.randn(count, 32)


generator = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 32))
critic = nn.Sequential(nn.Linear(32, 128), nn.LeakyReLU(0.2), nn.Linear(128, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
optimizer_c = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.5, 0.9))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.5, 0.9))


def penalty(real, fake):
    alpha = torch.rand(len(real), 1)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    gradients = autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
    return 10 * ((gradients.norm(2, dim=1) - 1) ** 2).mean()


for step in range(1000):
    real = real_batch()
    fake = generator(torch.randn(len(real), 16)).detach()
    optimizer_c.zero_grad()
    loss_c = critic(fake).mean() - critic(real).mean() + penalty(real, fake)
    loss_c.backward()
    optimizer_c.step()
    if step % 5 == 4:
        optimizer_g.zero_grad()
        loss_g = -critic(generator(torch.randn(64, 16))).mean()
        loss_g.backward()
        optimizer_g.step()
    if step % 100 == 0:
        print(f"step {step}: critic loss {loss_c.item():.4f}")
