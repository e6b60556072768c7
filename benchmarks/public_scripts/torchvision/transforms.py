import random

import numpy as np
import torch
from PIL import Image, ImageOps


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    def __call__(self, image):
        values = torch.from_numpy(np.array(image, dtype=np.float32) / 255)
        return values.unsqueeze(0) if values.dim() == 2 else values.permute(2, 0, 1).contiguous()


class Normalize:
    def __init__(self, mean, std, inplace=False):
        self.mean, self.std = torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1)

    def __call__(self, image):
        return (image - self.mean) / self.std


class Resize:
    def __init__(self, size, interpolation=None):
        self.size = (size, size) if isinstance(size, int) else tuple(size)

    def __call__(self, image):
        return image.resize(self.size[::-1], Image.BILINEAR)


class CenterCrop(Resize):
    pass


class Lambda:
    def __init__(self, function):
        self.function = function

    def __call__(self, image):
        return self.function(image)


class RandomHorizontalFlip:
    def __call__(self, image):
        return ImageOps.mirror(image) if random.random() < 0.5 else image


class Pad:
    def __init__(self, padding):
        self.padding = padding

    def __call__(self, image):
        return ImageOps.expand(image, self.padding)


class RandomCrop:
    def __init__(self, size, padding=0):
        self.size, self.padding = size, padding

    def __call__(self, image):
        image = ImageOps.expand(image, self.padding) if self.padding else image
        left, top = random.randint(0, image.width - self.size), random.randint(0, image.height - self.size)
        return image.crop((left, top, left + self.size, top + self.size))
