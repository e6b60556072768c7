"""Random number streams for data threads.

Code in a data thread may draw from `random`, `numpy.random` or torch without passing a generator. The numbers then come
from the stream of the thread's worker slot, and the script's generators do not advance. A stream yields the numbers
that a worker process with the number of the slot would draw. Draws that bypass the stream advance the script's
generators, so they can be detected with an `RngState`."""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.data._utils import worker

from slipstream.seams import data_threads
from slipstream.seams.patching import Patches
from slipstream.seams.rng_state import default_generators

_own = threading.local()  # .stream: the stream that the current thread draws from
_TORCH = ("manual_seed", "seed", "initial_seed", "get_rng_state", "set_rng_state")
Draw = Callable[..., Any]


class RngStream:
    """The three generators of one worker slot, seeded as torch seeds a worker process."""

    def __init__(self) -> None:
        numpy: Any = sys.modules.get("numpy.random")
        self.torch = torch.Generator()
        self.random = random.Random()
        self.numpy: Any = numpy.RandomState() if numpy is not None else None
        self._mode = _Mode(self.torch)

    def seed(self, base_seed: int, number: int) -> None:
        self.random.seed(base_seed + number)
        self.torch.manual_seed(base_seed + number)
        if self.numpy is not None:
            generate: Any = worker._generate_state
            self.numpy.seed(generate(base_seed, number))

    @contextlib.contextmanager
    def drawn_from(self) -> Iterator[None]:
        """Returns a context in which the current thread draws from this stream."""
        _own.stream = self
        try:
            with self._mode:
                yield
        finally:
            _own.stream = None


class _Mode(TorchFunctionMode):
    """Passes the stream's generator to each torch function that accepts a generator and got none. The mode affects only
    the calls of its own thread."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator
        self._draws = _torch_draws()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        data_threads.stand_if_held()
        kwargs = kwargs or {}
        if func in self._draws and kwargs.get("generator") is None:
            kwargs = {**kwargs, "generator": self._generator}
        return func(*args, **kwargs)


@functools.cache
def _torch_draws() -> frozenset[Any]:
    """Returns the functions and methods of torch that have a parameter `generator`, according to torch's own
    schemas."""
    schemas = torch._C._jit_get_all_schemas()
    names = {s.name.rpartition("::")[2] for s in schemas if any(a.name == "generator" for a in s.arguments)}
    found = [getattr(owner, name, None) for owner in (torch, torch.Tensor) for name in sorted(names)]
    for function in vars(torch.nn.init).values():
        if inspect.isfunction(function) and "generator" in inspect.signature(function).parameters:
            found.append(function)
    return frozenset(function for function in found if callable(function))


# --- functions that draw from a hidden generator of their module -----------------------------------------------------


def redirect_draws(patches: Patches) -> None:
    """Patches functions that draw from a hidden generator, so that a data thread draws from its own stream. All other
    threads draw as before. Functions that were imported by name are found in the namespaces of all modules."""
    draws = {id(original): (original, ours) for original, ours in _hidden_draws()}
    for module in list(sys.modules.values()):
        if not isinstance(module, ModuleType):
            continue
        for name, value in list(vars(module).items()):
            original, ours = draws.get(id(value), (None, None))
            if original is not None and original is value:
                patches.replace(module, name, ours)


def _hidden_draws() -> Iterator[tuple[Draw, Draw]]:
    yield from _of_module(random, random._inst, lambda stream: stream.random)
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        yield from _of_module(numpy, numpy.mtrand._rand, lambda stream: stream.numpy)
        for name in ("ranf", "sample"):  # aliases of random_sample
            if hasattr(numpy, name):
                yield _divided(numpy, name, lambda stream: stream.numpy.random_sample)
    for name in _TORCH:
        yield _divided(torch, name, functools.partial(_of_torch, name))
    # A worker process cannot seed the script's device, so a data thread must not seed it either.
    for device in (torch.cuda, torch.xpu):
        for name in ("manual_seed", "manual_seed_all"):
            yield _divided(device, name, lambda stream: lambda seed: None)


def _of_module(module: Any, hidden: Any, own: Callable[[RngStream], Any]) -> Iterator[tuple[Draw, Draw]]:
    for name, value in list(vars(module).items()):
        # In a race, `seed` is replaced by a function that gives all trials the same seeds, so it has no `__self__`.
        if name == "seed" or (getattr(value, "__self__", None) is hidden and callable(value)):
            yield _divided(module, name, functools.partial(_attribute, own, name))


def _attribute(own: Callable[[RngStream], Any], name: str, stream: RngStream) -> Draw:
    found: Draw = getattr(own(stream), name)
    return found


def _of_torch(name: str, stream: RngStream) -> Draw:
    generator = stream.torch
    draws: dict[str, Draw] = {
        "manual_seed": lambda seed: generator.manual_seed(int(seed)),
        "seed": generator.seed,
        "initial_seed": generator.initial_seed,
        "get_rng_state": generator.get_state,
        "set_rng_state": lambda new_state: generator.set_state(new_state) and None,
    }
    return draws[name]


def _divided(module: Any, name: str, own: Callable[[RngStream], Draw]) -> tuple[Draw, Draw]:
    original: Draw = getattr(module, name)

    @functools.wraps(original)
    def draw(*args: Any, **kwargs: Any) -> Any:
        stream = getattr(_own, "stream", None)
        return original(*args, **kwargs) if stream is None else own(stream)(*args, **kwargs)

    draw.__module__, draw.__qualname__ = module.__name__, name  # pickle looks the function up by these names
    return original, draw


def own_generators() -> list[Any]:
    """Returns the generators that the current thread draws from if the code passes no generator. In a data thread they
    are the generators of its stream, and not the script's. Use this function to detect draws of a dataset."""
    stream = getattr(_own, "stream", None)
    if stream is None:
        return default_generators()
    return [generator for generator in (stream.torch, stream.random, stream.numpy) if generator is not None]
