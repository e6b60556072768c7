"""Random numbers for threads: what a data thread draws from `random`, `numpy.random` and torch without a generator of
its own comes from its stream, and the script's generators do not move. A stream gives the very numbers that a worker
process of the same number would draw. What draws past it is found by whoever watches the script's generators."""

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

_own = threading.local()  # .stream: of the thread that builds a batch now
_TORCH = ("manual_seed", "seed", "initial_seed", "get_rng_state", "set_rng_state")
Draw = Callable[..., Any]


class RngStream:
    """Of one worker: three generators, seeded as torch seeds a worker process."""

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
        """By this thread, as long as the `with` lasts."""
        _own.stream = self
        try:
            with self._mode:
                yield
        finally:
            _own.stream = None


class _Mode(TorchFunctionMode):
    """Only this thread's calls of torch pass here. Each that could take a generator and was given none gets one."""

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
    """Functions and methods whose signature, as torch itself tells it, has a generator."""
    schemas = torch._C._jit_get_all_schemas()
    names = {s.name.rpartition("::")[2] for s in schemas if any(a.name == "generator" for a in s.arguments)}
    found = [getattr(owner, name, None) for owner in (torch, torch.Tensor) for name in sorted(names)]
    for function in vars(torch.nn.init).values():
        if inspect.isfunction(function) and "generator" in inspect.signature(function).parameters:
            found.append(function)
    return frozenset(function for function in found if callable(function))


# --- functions that draw from a generator hidden in their module -----------------------------------------------------


def redirect_draws(patches: Patches) -> None:
    """From now on a data thread that calls one of them draws from its own stream; everybody else draws as before.
    Who imported one by name is found in the namespaces of all modules."""
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
        for name in ("ranf", "sample"):  # other names for one of them
            if hasattr(numpy, name):
                yield _divided(numpy, name, lambda stream: stream.numpy.random_sample)
    for name in _TORCH:
        yield _divided(torch, name, functools.partial(_of_torch, name))
    for device in (
        torch.cuda,
        torch.xpu,
    ):  # a worker process has no device to seed, and the script's is not its to seed
        for name in ("manual_seed", "manual_seed_all"):
            yield _divided(device, name, lambda stream: lambda seed: None)


def _of_module(module: Any, hidden: Any, own: Callable[[RngStream], Any]) -> Iterator[tuple[Draw, Draw]]:
    for name, value in list(vars(module).items()):
        # `seed` is somebody's function where a race gives all riders equal seeds
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

    draw.__module__, draw.__qualname__ = module.__name__, name  # by these it is pickled
    return original, draw


# --- generators, to see whether they moved ---------------------------------------------------------------------------


def own_generators() -> dict[str, Any]:
    """By library: what code without a generator of its own draws from in the thread that asks. Who watches draws of a
    dataset must watch these: in a data thread they are not the script's."""
    stream = getattr(_own, "stream", None)
    if stream is not None:
        found = {"torch": stream.torch, "random": stream.random, "numpy.random": stream.numpy}
    else:
        numpy: Any = sys.modules.get("numpy.random")
        hidden = numpy.mtrand._rand if numpy is not None else None
        found = {"torch": torch.default_generator, "random": random._inst, "numpy.random": hidden}
    return {library: generator for library, generator in found.items() if generator is not None}


class RngWatch:
    """Their states at one moment. Who draws nothing meanwhile may ask whether somebody else did."""

    def __init__(self) -> None:
        self._states = [(library, one, _state(one)) for library, one in own_generators().items()]

    def moved(self) -> str:
        """The library that was drawn from; "" if none was."""
        return next((library for library, one, state in self._states if not _is_equal(_state(one), state)), "")

    def restore(self) -> None:
        for _, one, state in self._states:
            one.setstate(state) if isinstance(one, random.Random) else one.set_state(state)


def _state(generator: Any) -> Any:
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if type(one) is not type(other) or len(one) != len(other):
        return False
    return all(bool((a == b).all()) if hasattr(a, "all") else a == b for a, b in zip(one, other, strict=True))
