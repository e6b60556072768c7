import msgspec

from slipstream.diagnose.memory_growth import find_growth, has_stopped
from slipstream.records import Leak, Memory
from slipstream.testing.made_sessions import made_session

GIB = 2**30


def series(graphs, resident=lambda step: GIB, num_steps=200, every=40) -> list[Memory]:
    """Bytes at every step. Live tensors are counted only now and then."""
    return [
        Memory(step, step, int(resident(step)), 0, *((graphs(step), 100 + graphs(step)) if step % every == 0 else ()))
        for step in range(num_steps)
    ]


def growth_of(memory, leaks=()):
    return find_growth(msgspec.structs.replace(made_session(memory=memory), leaks=list(leaks)))


def test_a_graph_kept_at_every_step_is_seen():
    growth = growth_of(series(lambda step: 3 + step))
    assert growth.graphs_per_step == 1.0
    assert not growth.is_fatal


def test_bytes_that_fill_the_memory_are_fatal():
    growth = growth_of(series(lambda step: step, lambda step: GIB + step * 50e6))
    assert growth.is_fatal
    assert growth.steps_until_full < 1000


def test_two_observations_need_a_container_with_the_same_growth():
    memory = series(lambda step: step, every=150)
    assert growth_of(memory) is None
    assert growth_of(memory, [Leak("logs", 20)]) is None
    assert growth_of(memory, [Leak("losses", 190)]).graphs_per_step == 1.0


def test_a_sum_with_its_graphs_grows_though_no_tensor_is_alive():
    assert growth_of(series(lambda step: 5), [Leak("total", 190, is_sum=True)]).graphs_per_step > 0.9
    assert growth_of(series(lambda step: 5), [Leak("total", 30, is_sum=True)]) is None  # starts again with every epoch


def test_what_a_container_holds_counts_where_the_process_hides_it():
    memory = series(lambda step: 0)
    memory = [
        msgspec.structs.replace(m, num_tensors=m.num_tensors + m.step if m.num_tensors >= 0 else -1) for m in memory
    ]
    assert growth_of(memory) is None
    leak = Leak("outputs", 200, 200 * 50_000, has_graph=False)
    assert growth_of(memory, [leak]).bytes_per_step == 200 * 50_000 / 199


def test_growth_that_stops():
    assert has_stopped(series(lambda step: min(step, 90), every=20)) == 100
    assert has_stopped(series(lambda step: step, every=20)) is None
    # Full just before the last observation.
    assert has_stopped(series(lambda step: min(step, 150), num_steps=161)) is None
    assert has_stopped(series(lambda step: min(step, 150), num_steps=201)) == 160
    soon = Memory(162, 0, GIB, 0, 160, 260)  # just after another observation
    assert has_stopped([*series(lambda step: step, every=40), soon]) is None
    assert has_stopped(series(lambda step: 5, every=150)) is None  # two observations


def test_warm_up_caches_and_noise_are_not_growth():
    assert growth_of(series(lambda step: min(step, 60))) is None
    assert growth_of(series(lambda step: 5 + step % 3)) is None
    assert growth_of(series(lambda step: 5, lambda step: GIB * (2 - 0.9**step))) is None
    assert growth_of(series(lambda step: step % 50)) is None


def test_pages_of_a_memory_map_are_not_tensors():
    assert growth_of(series(lambda step: 5, lambda step: GIB + step * 1e6)) is None


def test_a_list_within_an_episode_is_no_leak():
    assert growth_of(series(lambda step: step % 21), [Leak("logs", 20)]) is None
