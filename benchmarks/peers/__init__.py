"""The contestants of loaders.py, one file each: what a loader's own authors would write for the same photographs."""
