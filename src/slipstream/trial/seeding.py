"""Equal random numbers for all riders: seeds are set as each library is imported, and where the script asks the system
for entropy it gets ours. For the twin with another seed, whatever seed the script sets itself is shifted."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from slipstream.seams.import_hooks import ImportHooks
from slipstream.seams.patching import Patches

SHIFT = 7919
_LARGEST = 2**32  # numpy's legacy generator takes no more


class Seeding:
    def __init__(self, seed: int, shift: int, patches: Patches) -> None:
        self._seed = seed + shift
        self._shift = shift
        self._patches = patches
        self._generators = itertools.count()

    def install(self, arrivals: ImportHooks) -> None:
        arrivals.when_imported("random", self._seed_random)
        arrivals.when_imported("numpy.random", self._seed_numpy)  # numpy itself imports it late
        arrivals.when_imported("torch", self._seed_torch)

    def _moved(self, seed: Any) -> Any:
        """The seed to use in place of one that the script gave."""
        if seed is None:
            return self._seed
        if isinstance(seed, int) or type(seed).__module__ == "numpy":
            try:
                return int(seed) + self._shift
            except TypeError:  # an array of them
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
        # Each unseeded generator is another one, as it would be, and the same one in every rider
        self._replace(module, "default_rng", lambda seed: self._fresh() if seed is None else self._moved(seed))

    def _fresh(self) -> list[int]:
        return [self._seed, next(self._generators)]

    def _seed_torch(self, torch: Any) -> None:
        torch.manual_seed(self._seed)
        for owner in (torch, torch.random):
            self._patches.replace(owner, "seed", lambda: torch.manual_seed(self._seed).initial_seed())
        if not self._shift:
            return
        # torch's own calls of these are shifted twice: a seed of their own is all that is wanted
        for owner in (torch, torch.random):
            self._replace(owner, "manual_seed", self._moved)
        for name in ("manual_seed", "manual_seed_all"):
            self._replace(torch.cuda, name, self._moved)
        self._patches.replace(torch, "Generator", _shifted_generator(torch.Generator, self._moved))

    def _replace(self, owner: ModuleType, name: str, moved: Callable[[Any], Any]) -> None:
        """From now on the first argument is another one."""
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
    """torch's generator takes no new attributes: a class that passes for it."""

    class Passing(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original)

    class Generator(original, metaclass=Passing):  # type: ignore[misc]
        def manual_seed(self, seed: int) -> Any:
            return super().manual_seed(moved(seed))

    Generator.__module__, Generator.__qualname__ = original.__module__, original.__qualname__
    return Generator
