"""A GAN of perceptrons on small made images, unseeded."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LATENT, SIDE = 64, 16
coarse = torch.rand(2000, 1, 4, 4)
images = nn.functional.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear") * 2 - 1
loader = DataLoader(TensorDataset(images), batch_size=64, shuffle=True, drop_last=True)

generator = nn.Sequential(
    nn.Linear(LATENT, 128), nn.ReLU(), nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, SIDE * SIDE), nn.Tanh()
)
discriminator = nn.Sequential(
    nn.Linear(SIDE * SIDE, 256), nn.LeakyReLU(0.2), nn.Linear(256, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1), nn.Sigmoid()
)
criterion = nn.BCELoss()
g_optimizer = torch.optim.Adam(generator.parameters(), lr=0.0002)
d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=0.0002)

for epoch in range(20):
    for (real,) in loader:
        real = real.view(len(real), -1)
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        fake = generator(torch.randn(len(real), LATENT))
        d_loss = criterion(discriminator(real), ones) + criterion(discriminator(fake.detach()), zeros)
        d_optimizer.zero_grad()
        d_loss.backward()
        d_optimizer.step()

        fake = generator(torch.randn(len(real), LATENT))
        g_loss = criterion(discriminator(fake), ones)
        g_optimizer.zero_grad()
        g_loss.backward()
        g_optimizer.step()
    print(f"epoch {epoch}: d_loss {d_loss.item():.4f}, g_loss {g_loss.item():.4f}")
