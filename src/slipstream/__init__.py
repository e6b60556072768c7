"""slipstream: makes PyTorch training faster, and proves it. Importing it imports no torch and patches nothing."""

__version__ = "0.1.0"
