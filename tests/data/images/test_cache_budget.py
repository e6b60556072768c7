"""How many decoded images may be cached, decided for the whole data set."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slipstream.data.images import cache_budget as room
from slipstream.data.images.cache_budget import CacheBudget, CacheMeter
from slipstream.data.images.pixel_store import key_of
from slipstream.store.cache_folder import cache_folder


def made(folder: Path, memory_bytes: int, num_samples: int) -> tuple[CacheBudget, list[str]]:
    said: list[str] = []
    allowance = CacheBudget(folder, memory_bytes, said.append)
    allowance.expect(1, num_samples)
    return allowance, said


def num_allowed(allowance: CacheBudget, num_images: int, num_bytes: int = 1000) -> int:
    count = 0
    for number in range(num_images):
        if allowance.may_keep(key_of(number), num_bytes):
            allowance.meter.add(kept=1, num_bytes=num_bytes)
            count += 1
    return count


def test_a_data_set_that_fits_is_cached_completely(tmp_path: Path) -> None:
    allowance, said = made(tmp_path, memory_bytes=10**7, num_samples=1000)
    assert num_allowed(allowance, 1000) == 1000 and not said


def test_all_processes_cache_the_same_part_of_a_larger_data_set(tmp_path: Path) -> None:
    first, said = made(tmp_path, memory_bytes=10**6, num_samples=1000)  # half of it for a million bytes of images
    second, _ = made(tmp_path, memory_bytes=10**6, num_samples=1000)
    chosen = [number for number in range(1000) if first.may_keep(key_of(number), 1000)]
    again = [number for number in reversed(range(1000)) if second.may_keep(key_of(number), 1000)]
    assert 400 < len(chosen) < 600 and sorted(again) == chosen and not said


def test_parts_of_one_data_set_are_counted_once_and_can_be_forgotten(tmp_path: Path) -> None:
    allowance, _ = made(tmp_path, 10**6, 10)
    assert allowance.expect(2, 80, source=9, num_there=100) and not allowance.expect(2, 80, source=9, num_there=100)
    assert allowance.num_expected() == 90
    allowance.expect(3, 80, source=9, num_there=100)
    assert allowance.num_expected() == 110, "they overlap"
    allowance.forget(2)
    allowance.forget(3)
    assert allowance.num_expected() == 10


def test_nothing_is_cached_if_too_small_a_part_fits(tmp_path: Path) -> None:
    allowance, said = made(tmp_path, memory_bytes=10**6, num_samples=100_000)
    assert num_allowed(allowance, 100) == 0 and allowance.is_closed
    (sentence,) = said
    assert "may be used" in sentence


def test_more_images_than_samples_stop_at_the_budget(tmp_path: Path) -> None:
    allowance, said = made(tmp_path, memory_bytes=10**6, num_samples=10)
    assert num_allowed(allowance, 1000) == 500
    assert len(said) == 1 and "limit" in said[0]


def test_a_reserve_of_the_disk_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allowance, said = made(tmp_path, memory_bytes=10**9, num_samples=10)
    monkeypatch.setattr(room, "free_disk_bytes", lambda folder: 0)
    assert num_allowed(allowance, 3) == 0 and said == ["the disk is nearly full: no more decoded images are cached"]


def test_forked_processes_share_the_counters() -> None:
    meter = CacheMeter()
    for _ in range(2):
        child = os.fork()
        if child == 0:
            meter.add(kept=2, found=1, num_bytes=100)
            os._exit(0)
        os.waitpid(child, 0)
    meter.add(kept=1)
    assert (meter.num_kept, meter.num_found, meter.kept_bytes) == (5, 2, 200)


def test_location_of_the_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/ada")
    assert cache_folder() == Path(os.environ["SLIPSTREAM_CACHE"])
    monkeypatch.delenv("SLIPSTREAM_CACHE")
    assert cache_folder() == Path("/var/ada/slipstream")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/home/ada/.cache/slipstream")
