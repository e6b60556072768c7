"""Gives all trials the same random numbers. Seeds are set when each library is imported, and a request of the script
for entropy from the system gets a fixed seed instead. For the control with another seed, every number that the script
sets as a seed is shifted."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from slipstream.seams.import_hooks import ImportHooks
from slipstream.seams.patching import Patches

SHIFT = 7919
_LARGEST = 2**32  # numpy's legacy generator accepts only smaller seeds


class Seeding:
    """Seeds random, numpy and torch when they are imported."""

    def __init__(self, seed: int, shift: int, patches: Patches) -> None:
        self._seed = seed + shift
        self._shift = shift
        self._patches = patches
        self._generators = itertools.count()

    def install(self, import_hooks: ImportHooks) -> None:
        import_hooks.when_imported("random", self._seed_random)
        import_hooks.when_imported("numpy.random", self._seed_numpy)  # numpy imports this submodule late
        import_hooks.when_imported("torch", self._seed_torch)

    def _moved(self, seed: Any) -> Any:
        """Returns the seed to use instead of the one that the script passed."""
        if seed is None:
            return self._seed
        if isinstance(seed, int) or type(seed).__module__ == "numpy":
            try:
                return int(seed) + self._shift
            except TypeError:  # an array of seeds
                return seed
        return seed

    def _seed_random(self, module: ModuleType) -> None:
        module.seed(self._seed)
        self._replace(module, "seed", self._moved)

    def _seed_numpy(self, module: ModuleType) -> None:
        module.seed(self._seed % _LARGEST)

        def moved(seed: Any) -> Any:
            seed = self._moved(seed)
            return seed % _LARGEST if isinstance(seed, int) and seed >= 0 else seed

        self._replace(module, "seed", moved)
        # Unseeded generators differ from each other, as they would without slipstream, and are equal in all trials.
        self._replace(module, "default_rng", lambda seed: self._fresh() if seed is None else self._moved(seed))

    def _fresh(self) -> list[int]:
        return [self._seed, next(self._generators)]

    def _seed_torch(self, torch: Any) -> None:
        torch.manual_seed(self._seed)
        for owner in (torch, torch.random):
            self._patches.replace(owner, "seed", lambda: torch.manual_seed(self._seed).initial_seed())
        if not self._shift:
            return
        # Calls from within torch are shifted twice. That does no harm: this control only needs a different seed.
        for owner in (torch, torch.random):
            self._replace(owner, "manual_seed", self._moved)
        for name in ("manual_seed", "manual_seed_all"):
            self._replace(torch.cuda, name, self._moved)
        self._patches.replace(torch, "Generator", _shifted_generator(torch.Generator, self._moved))

    def _replace(self, owner: ModuleType, name: str, moved: Callable[[Any], Any]) -> None:
        """Patches `owner.name` so that its first argument, the seed, goes through `moved`."""
        original = getattr(owner, name)
        keyword = "a" if owner.__name__ == "random" else "seed"

        @functools.wraps(original)
        def seeding(*args: Any, **kwargs: Any) -> Any:
            if keyword in kwargs:
                kwargs[keyword] = moved(kwargs[keyword])
                return original(*args, **kwargs)
            return original(moved(args[0] if args else None), *args[1:], **kwargs)

        self._patches.replace(owner, name, seeding)


def _shifted_generator(original: Any, moved: Callable[[Any], Any]) -> Any:
    """Returns a subclass, because torch.Generator itself cannot be patched. Instances of torch.Generator count as
    instances of the subclass."""

    class GeneratorMeta(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original)

    class Generator(original, metaclass=GeneratorMeta):  # type: ignore[misc]
        def manual_seed(self, seed: int) -> Any:
            return super().manual_seed(moved(seed))

    Generator.__module__, Generator.__qualname__ = original.__module__, original.__qualname__
    return Generator
