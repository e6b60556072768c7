"""Random number streams for threads give the numbers of a worker process and do not advance the script's generators."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.data.threads.rng_streams import RngStream, own_generators, redirect_draws
from slipstream.seams.patching import Patches
from slipstream.seams.rng_state import RngState


def draws() -> list[float]:
    """Draws with functions of each library that use a hidden generator."""
    made = [
        torch.rand(2),
        torch.randint(0, 9, (2,)),
        torch.randperm(5),
        torch.empty(2).uniform_(1, 2),
        torch.zeros(2).normal_(),
        torch.bernoulli(torch.full((4,), 0.5)),
        torch.multinomial(torch.ones(5), 2),
        torch.normal(torch.zeros(2), 1.0),
        torch.rand_like(torch.ones(2)),
        torch.nn.init.trunc_normal_(torch.empty(2)),
        torch.distributions.Beta(2.0, 3.0).sample(),
    ]
    floats = [float(value) for tensor in made for value in tensor.flatten()]
    plain = [random.random(), random.gauss(0, 1), float(random.randint(0, 99)), random.choice([1.0, 2.0])]
    return [*floats, *plain, *np.random.rand(2), float(np.random.randint(99)), float(np.random.permutation(9)[0])]


@pytest.fixture
def redirected() -> Iterator[None]:
    patches = Patches(lambda seam, fault: pytest.fail(f"{seam}: {fault!r}"), lambda: False)
    redirect_draws(patches)
    yield
    patches.close()
    assert not patches.leftovers


@pytest.mark.usefixtures("redirected")
def test_a_stream_draws_like_a_worker_and_leaves_other_generators() -> None:
    from torch.utils.data._utils.worker import _generate_state

    base, number = 1234, 3
    stream, watch = RngStream(), RngState(own_generators())
    stream.seed(base, number)
    with stream.drawn_from():
        ours = draws()
    assert watch.moved_library() == ""
    random.seed(base + number)
    torch.manual_seed(base + number)
    np.random.seed(_generate_state(base, number))
    assert ours == draws()


@pytest.mark.usefixtures("redirected")
def test_a_seed_set_in_a_thread_affects_only_its_stream() -> None:
    """Scripts often give an image and its mask the same transform by setting the same seed."""
    stream, watch = RngStream(), RngState(own_generators())
    stream.seed(0, 0)
    with stream.drawn_from():
        rows = []
        for _ in range(2):
            random.seed(7)
            np.random.seed(7)
            torch.manual_seed(7)
            torch.cuda.manual_seed_all(8)
            state = torch.get_rng_state()
            rows.append(draws())
            torch.set_rng_state(state)
            assert torch.initial_seed() == 7 and float(torch.rand(())) == rows[-1][0]
    assert rows[0] == rows[1] and watch.moved_library() == ""


def test_functions_imported_by_name_are_redirected() -> None:
    module: Any = ModuleType("by_name")
    module.rand, module.flip, module.seed = np.random.rand, random.random, torch.manual_seed
    bare = module.flip
    sys.modules["by_name"] = module
    patches = Patches(lambda seam, fault: None, lambda: False)
    try:
        redirect_draws(patches)
        stream, watch = RngStream(), RngState(own_generators())
        with stream.drawn_from():
            module.seed(3)
            module.rand()
            module.flip()
        assert watch.moved_library() == "" and module.flip is random.random is not bare
        assert pickle.loads(pickle.dumps(random.random)) is random.random
    finally:
        patches.close()
        del sys.modules["by_name"]
    assert module.flip is random.random is bare


@pytest.mark.parametrize(
    ("draw", "library"),
    [
        (lambda: torch.nn.functional.dropout(torch.ones(3)), "torch"),
        (lambda: random._inst.random(), "random"),  # type: ignore[attr-defined]
        (lambda: np.random.mtrand._rand.rand(), "numpy.random"),  # type: ignore[attr-defined]
    ],
)
@pytest.mark.usefixtures("redirected")
def test_a_draw_that_bypasses_the_stream_is_detected_and_undone(draw: Callable[[], Any], library: str) -> None:
    stream, watch = RngStream(), RngState(own_generators())
    with stream.drawn_from():
        draw()
    assert watch.moved_library() == library
    watch.restore()
    assert watch.moved_library() == ""


def test_rng_state_in_a_thread_uses_the_threads_stream() -> None:
    stream = RngStream()
    with stream.drawn_from():
        watch = RngState(own_generators())
        torch.rand(1)
        assert watch.moved_library() == "torch"
        watch.restore()
        assert watch.moved_library() == "" and own_generators()[1] is stream.random
    assert own_generators()[0] is torch.default_generator
