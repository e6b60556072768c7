"""A convolutional GAN with batch norm in both networks."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(999)
coarse = torch.rand(800, 1, 4, 4)
images = nn.functional.interpolate(coarse, size=(16, 16), mode="bilinear") * 2 - 1
loader = DataLoader(TensorDataset(images), batch_size=16, shuffle=True)


def start(m):
    name = m.__class__.__name__
    if "Conv" in name:
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif "BatchNorm" in name:
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


netG = nn.Sequential(
    nn.ConvTranspose2d(32, 32, 4, 1, 0, bias=False), nn.BatchNorm2d(32), nn.ReLU(True),
    nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(True),
    nn.ConvTranspose2d(16, 1, 4, 2, 1, bias=False), nn.Tanh(),
)  # fmt: skip
netD = nn.Sequential(
    nn.Conv2d(1, 16, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(16, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(32, 1, 4, 1, 0, bias=False), nn.Sigmoid(),
)  # fmt: skip
netG.apply(start)
netD.apply(start)
criterion = nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))
for epoch in range(10):
    for (real,) in loader:
        netD.zero_grad()
        label = torch.full((len(real),), 1.0)
        lossD_real = criterion(netD(real).view(-1), label)
        lossD_real.backward()
        fake = netG(torch.randn(len(real), 32, 1, 1))
        label.fill_(0.0)
        lossD_fake = criterion(netD(fake.detach()).view(-1), label)
        lossD_fake.backward()
        optimizerD.step()
        netG.zero_grad()
        label.fill_(1.0)
        lossG = criterion(netD(fake).view(-1), label)
        lossG.backward()
        optimizerG.step()
    print(f"[{epoch}/10] Loss_D: {lossD_real + lossD_fake:.4f} Loss_G: {lossG.item():.4f}")
