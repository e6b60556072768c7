import random

from slipstream.diagnose.growth import find_growth
from slipstream.records import Memory
from slipstream.testing.sessions import made_session

GIB = 2**30


def series(graphs, resident=lambda step: GIB, num_steps=200) -> list[Memory]:
    return [Memory(step, step, int(resident(step)), 0, graphs(step), 100 + graphs(step)) for step in range(num_steps)]


def growth_of(memory):
    return find_growth(made_session(memory=memory))


def test_a_graph_kept_at_every_step_is_seen():
    growth = growth_of(series(lambda step: 3 + step))
    assert growth.graphs_per_step == 1.0
    assert not growth.is_fatal


def test_bytes_that_fill_the_memory_are_fatal():
    growth = growth_of(series(lambda step: step, lambda step: GIB + step * 50e6))
    assert growth.is_fatal
    assert growth.steps_until_full < 1000


def test_warm_up_caches_and_noise_are_not_growth():
    rng = random.Random(0)
    assert growth_of(series(lambda step: min(step, 60))) is None
    assert growth_of(series(lambda step: 5 + rng.randrange(3))) is None
    assert growth_of(series(lambda step: 5, lambda step: GIB * (2 - 0.9**step))) is None
    assert growth_of(series(lambda step: step % 50)) is None


def test_pages_of_a_memory_map_are_not_tensors():
    assert growth_of(series(lambda step: 5, lambda step: GIB + step * 1e6)) is None


def test_too_few_points_say_nothing():
    assert growth_of(series(lambda step: step, num_steps=10)) is None
