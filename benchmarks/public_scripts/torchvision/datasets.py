import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset


class _Made(Dataset):
    shape, size = (28, 28), 3000

    def __init__(self, root=None, train=True, transform=None, target_transform=None, download=False, **others):
        draws = np.random.RandomState(1 if train else 2)
        patterns = np.random.RandomState(0).rand(10, 7, 7)
        patterns = np.kron(patterns, np.ones((self.shape[0] // 7 + 1, self.shape[1] // 7 + 1)))[
            :, : self.shape[0], : self.shape[1]
        ]
        count = self.size if train else 500
        labels = draws.randint(0, 10, count)
        images = patterns[labels] * 200 + draws.rand(count, *self.shape[:2]) * 55
        self.data, self.targets = torch.from_numpy(images.astype(np.uint8)), torch.from_numpy(labels)
        self.transform, self.target_transform = transform, target_transform
        self.classes = [str(number) for number in range(10)]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        image = Image.fromarray(self.data[index].numpy())
        if len(self.shape) == 3:
            image = image.convert("RGB")
        target = int(self.targets[index])
        if self.transform is not None:
            image = self.transform(image)
        return image, self.target_transform(target) if self.target_transform is not None else target


class MNIST(_Made):
    pass


class FashionMNIST(_Made):
    pass


class CIFAR10(_Made):
    shape = (32, 32, 3)


class FakeData(_Made):
    shape = (32, 32, 3)

    def __init__(self, size=1000, image_size=(3, 224, 224), num_classes=10, transform=None):
        self.shape = (*image_size[1:], 3)
        super().__init__(transform=transform)
