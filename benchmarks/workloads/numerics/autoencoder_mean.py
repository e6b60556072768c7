"""A convolutional autoencoder whose loss is a mean over pixels, so that gradients are small."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

coarse = torch.rand(600, 3, 4, 4)
images = nn.functional.interpolate(coarse, size=(32, 32), mode="bilinear")
loader = DataLoader(TensorDataset(images), batch_size=8, shuffle=True)
encoder = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())
decoder = nn.Sequential(
    nn.ConvTranspose2d(16, 8, 2, 2), nn.ReLU(), nn.ConvTranspose2d(8, 3, 2, 2), nn.Sigmoid()
)
model = nn.Sequential(encoder, decoder)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for epoch in range(10):
    for (x,) in loader:
        loss = 1e-3 * (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.7f}")
