from __future__ import annotations

import os
from pathlib import Path

from slipstream.data.images.cache_folder import ImageFacts
from slipstream.data.images.pixel_store import _SLOTS, CheckedEntries, PixelStore, key_of


def test_checked_entries_are_shared_with_forked_processes() -> None:
    checked = CheckedEntries()
    child = os.fork()
    if child == 0:
        checked.add(-5)
        os._exit(0)
    os.waitpid(child, 0)
    assert checked.has(-5) and not checked.has(5) and not checked.has(0)
    checked.add(7)
    checked.add(7 + _SLOTS)
    assert checked.has(7 + _SLOTS) and not checked.has(7), "one that lost its place is checked again"


def test_changed_pixels_count_as_absent(tmp_path: Path) -> None:
    facts = ImageFacts(key_of(1), "L", (40, 30), -1, "")
    store = PixelStore(tmp_path)
    store.write(facts, memoryview(bytes(1200)))
    (entry,) = tmp_path.iterdir()
    for other in (store, PixelStore(tmp_path)):  # the store that wrote the file, and one that must check it
        found = other.read(facts.key)
        assert found is not None and bytes(found.view()) == bytes(1200)
        data, times = bytearray(entry.read_bytes()), entry.stat()
        data[600] ^= 1
        entry.write_bytes(data)
        os.utime(entry, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
        assert other.read(facts.key) is None
        data[600] ^= 1
        entry.write_bytes(data)


def test_pixels_of_another_user_count_as_absent(tmp_path: Path) -> None:
    facts = ImageFacts(key_of(1), "L", (40, 30), -1, "")
    store = PixelStore(tmp_path)
    store.write(facts, memoryview(bytes(1200)))
    (entry,) = tmp_path.iterdir()
    assert store.read(facts.key) is not None
    for mode in (0o620, 0o602):
        entry.chmod(mode)
        assert store.read(facts.key) is None
    entry.chmod(0o600)
    assert store.read(facts.key) is not None
    if os.geteuid() == 0:
        os.chown(entry, 12345, 12345)
        assert store.read(facts.key) is None
    entry.rename(tmp_path / "elsewhere")
    entry.symlink_to(tmp_path / "elsewhere")
    assert store.read(facts.key) is None
    entry.unlink()
    os.mkfifo(entry)
    assert store.read(facts.key) is None
