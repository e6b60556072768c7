"""A stand-in for torchvision with made data, for scripts that would download theirs."""

from . import datasets, transforms, utils

__all__ = ["datasets", "transforms", "utils"]
