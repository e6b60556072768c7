from __future__ import annotations

import os

import pytest

from slipstream.data.workers import dataset_fingerprint as room
from slipstream.data.workers.dataset_fingerprint import Elements, difference, look_closely


def test_the_same_elements_are_recognised() -> None:
    values = [f"name {number}" for number in range(100)]
    seen = Elements(values)
    assert seen.are_in(values) and seen.are_in(list(values)) and not seen.are_in(values[:-1])
    values.append("more")
    assert not seen.are_in(values)
    del values[-1]
    assert seen.are_in(values)
    values[50] = f"name {50}"  # another object that is equal
    assert not seen.are_in(values) and seen == Elements(values)
    values[50] = "other"
    assert not seen.are_in(values) and seen != Elements(values)
    assert Elements([]).are_in([]) and room._IS_KNOWN


def test_comparing_a_list_does_not_write_to_its_elements() -> None:
    class Thing:
        def __init__(self) -> None:
            self.names = [f"name {number:0100d}" for number in range(20_000)]
            self.objects = [Thing.__new__(Thing) for _ in range(20_000)]

    def own_bytes() -> int:
        with open("/proc/self/smaps_rollup") as file:
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith(("Private_Dirty", "Swap:")))

    if not os.path.exists("/proc/self/smaps_rollup"):
        pytest.skip("this system does not tell which pages are a process's own")
    thing = Thing()
    before = look_closely(thing)
    reading, writing = os.pipe()
    child = os.fork()  # memory is shared until one of the processes writes to it
    if child == 0:
        look_closely(object.__new__(Thing))  # the first call writes to some memory
        grown = []
        for known in (before, None):
            start = own_bytes()
            now = look_closely(thing, before=known)
            grown.append(own_bytes() - start)
        os.write(writing, f"{grown[0]} {grown[1]} {difference(before, now)}.".encode())
        os._exit(0)
    os.waitpid(child, 0)
    careful, careless, said = os.read(reading, 1000).decode().split()
    os.close(reading)
    os.close(writing)
    assert said == "." and int(careful) < 1_500_000 < 2_500_000 < int(careless), "three million bytes of names"
    thing.names[10_000] = "other"
    assert difference(before, look_closely(thing, before=before)) == "names"
