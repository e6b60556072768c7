"""The contestants of loaders.py. Each module uses one loader as its documentation recommends."""
