"""5,000 mutations of the files that slipstream reads. Each reader returns, or raises the error that its command turns
into a sentence. Sessions are also read by the commands themselves.

The mutations are drawn from a fixed seed. Each kind runs in a process of its own with 1 GB of memory, and each file has
ten seconds."""

from __future__ import annotations

import gzip
import os
import random
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from slipstream.cli.group import slipstream
from slipstream.data.images.cache_folder import ImageFacts, survey
from slipstream.data.images.pixel_store import PixelStore, key_of
from slipstream.recipe.file import read_recipe
from slipstream.records import Choice, Ended, Ending, Message, Recipe, Told
from slipstream.sandbox import mounts
from slipstream.sandbox.downloads import kept_downloads
from slipstream.store.index import entries, index_path
from slipstream.store.sessions import StorageError, load_session, load_speedtest
from slipstream.tuning.journal import Journal
from slipstream.wire.spool import Spool, SpoolReader

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks")
SAVED = Path(__file__).parents[1] / "golden" / "saved"
_MEMORY_BYTES = 1 << 30
_LIMIT_S = 10
_ODD: list[Any] = [
    *(None, True, -1, 0, 2**63, -(2**63), 1e308, -1e308, float("nan"), float("inf"), 5e-324, "", "\x1b[2J\x1b]0;x\x07"),
    *("[red]x[/red]", "x" * 5000, "\n| a | b |\n", "../../etc/passwd", "\0", b"\xff", [], [[[]]], {}, {"a": {"b": []}}),
]  # fmt: skip

Mutate = Callable[[random.Random], bytes]


def bytes_of(data: bytes) -> Mutate:
    """Mutations of the bytes."""

    def mutate(draw: random.Random) -> bytes:
        kind = draw.randrange(7)
        at = draw.randrange(len(data) + 1)
        some = draw.randbytes(draw.randrange(1, 9))
        if kind == 0:
            return data[:at]
        if kind == 1:
            return data[:at] + some + data[at:]
        if kind == 2:
            return data[:at] + data[at + draw.randrange(1, 100) :]
        if kind == 3:
            return data[:at] + draw.choice([b"[", b"{", b"\x91", b"\x81\xa1a", b"a=["]) * 5000 + data[at:]
        if kind == 4:
            return data[:at] + data[: draw.randrange(len(data) + 1)]
        if kind == 5:
            return draw.choice([b"", b"\0" * 4096, b"\xff" * 64, data * 2, draw.randbytes(64)])
        flipped = bytearray(data)
        for _ in range(draw.randrange(1, 6)):
            flipped[draw.randrange(len(flipped))] = draw.randrange(256)
        return bytes(flipped)

    return mutate


def values_of(data: bytes) -> Mutate:
    """Mutations of one to three values of a MessagePack file."""

    def mutate(draw: random.Random) -> bytes:
        decoded = msgspec.msgpack.decode(data)
        for _ in range(draw.randrange(1, 4)):
            node: Any = decoded
            while True:
                keys = list(node) if isinstance(node, dict) else list(range(len(node)))
                key = draw.choice(keys)
                if not isinstance(node[key], dict | list) or not node[key] or draw.random() < 0.05:
                    node[key] = draw.choice(_ODD)
                    break
                node = node[key]
        try:
            return msgspec.msgpack.encode(decoded)
        except (OverflowError, msgspec.EncodeError):
            return data

    return mutate


def saved(name: str) -> bytes:
    return gzip.decompress((SAVED / f"{name}.msgpack.gz").read_bytes())


def run(*arguments: str) -> None:
    done = CliRunner().invoke(slipstream, list(arguments))
    if done.exit_code not in (0, 2):
        assert done.exception is not None
        raise done.exception
    assert "Traceback" not in done.output and "\x1b[2J" not in done.output and "\x1b]" not in done.output


# --- one reader each, called with a folder in which the file is -------------------------------------------------------


def read_session(folder: Path) -> None:
    try:
        load_session(folder / "x.msgpack")
    except StorageError:
        return
    run("report", str(folder / "x.msgpack"))


def read_history(folder: Path) -> None:
    run("history")
    run("history", "--json")


def read_toml(folder: Path) -> None:
    try:
        read_recipe(folder / "slipstream.toml")
    except ValueError as error:
        assert "\x1b" not in str(error)


FACTS = {"script": "train.py"}


def read_journal(folder: Path) -> None:
    Journal(str(folder / ".slipstream/journals/x.jsonl"), FACTS, is_resumed=True)


def made_journal(folder: Path) -> bytes:
    path = folder / ".slipstream/journals/x.jsonl"
    journal = Journal(str(path), FACTS)
    journal.begin_proof(Recipe((Choice("workers", 2),)))
    for number in range(3):
        journal.remember_pair(Recipe((Choice("workers", 2),)), number / 7)
    return path.read_bytes()


def read_index(folder: Path) -> None:
    assert len(entries(folder / ".slipstream")) <= 1  # a row of it may say that the session cannot be read


def made_index(folder: Path) -> bytes:
    entries(folder / ".slipstream")
    return index_path(folder / ".slipstream").read_bytes()


def read_spool(folder: Path) -> None:
    reader = SpoolReader(folder)
    list(reader.read())
    list(reader.read())


def made_spool(folder: Path) -> bytes:
    spool = Spool(folder)
    messages: list[Message] = [Told(note="a note", written=["a", "b"]), Ended(Ending("finished", 0, 1.0))]
    for message in messages * 3:
        spool.write(message)
    spool.close()
    path = folder / f"{os.getpid()}.spool"
    data = path.read_bytes()
    path.unlink()
    return data


def read_speedtest(folder: Path) -> None:
    try:
        load_speedtest(folder)
    except StorageError:
        return


def read_kept(folder: Path) -> None:
    kept_downloads(folder)
    (folder / ".slipstream/kept/x/tree").mkdir(parents=True, exist_ok=True)  # refused entries are deleted


IMAGE = ImageFacts(key_of("a"), "RGB", (2, 2), -1, "/data")


def read_pixels(folder: Path) -> None:
    PixelStore(folder / "images").read(IMAGE.key)
    survey(folder)


def made_pixels(folder: Path) -> bytes:
    PixelStore(folder / "images").write(IMAGE, memoryview(bytes(range(12))))
    [path] = [path for path in (folder / "images").rglob("*") if path.is_file()]
    return path.read_bytes()


Make = Callable[[Path], bytes]  # the undamaged file; may prepare the folder
KINDS: dict[str, tuple[int, str, Make, Callable[[bytes], Mutate], Callable[[Path], None]]] = {
    "session": (1500, "x.msgpack", lambda folder: saved("check"), bytes_of, read_session),
    "values of a check": (250, "x.msgpack", lambda folder: saved("check"), values_of, read_session),
    "values of a tuning": (250, "x.msgpack", lambda folder: saved("tune"), values_of, read_session),
    "values of a memory report": (100, "x.msgpack", lambda folder: saved("memory"), values_of, read_session),
    "values of a fit": (100, "x.msgpack", lambda folder: saved("fit"), values_of, read_session),
    "history": (200, ".slipstream/sessions/x.msgpack", lambda folder: saved("check"), bytes_of, read_history),
    "recipe": (800, "slipstream.toml", lambda folder: (SAVED / "slipstream.toml").read_bytes(), bytes_of, read_toml),
    "journal": (600, ".slipstream/journals/x.jsonl", made_journal, bytes_of, read_journal),
    "index": (200, "", made_index, bytes_of, read_index),
    "spool": (500, "1.spool", made_spool, bytes_of, read_spool),
    "speed test": (200, ".slipstream/machine.msgpack", lambda folder: saved("check"), bytes_of, read_speedtest),
    "kept download": (100, ".slipstream/kept/x/path", lambda folder: b"data", bytes_of, read_kept),
    "decoded image": (200, f"images/{IMAGE.key.hex()}.pixels", made_pixels, bytes_of, read_pixels),
}


def test_there_are_5000_mutations() -> None:
    assert sum(number for number, *_ in KINDS.values()) == 5000


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_named_or_ignored(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number, name, make, mutations, read = KINDS[kind]
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    project = tmp_path / "project"
    folder = project / ".slipstream"
    for inner in (folder / "sessions", folder / "journals", folder / "kept/x/tree"):
        inner.mkdir(parents=True)
    monkeypatch.chdir(project)
    if kind == "index":
        (folder / "sessions/x.msgpack").write_bytes(saved("fit"))
    mutate = mutations(make(project))
    path = project / name if name else index_path(folder)

    def try_all() -> None:
        limit_memory()
        read(project)  # imports what it needs
        faults = list(faults_of(number, path, mutate, lambda: read(project)))
        if faults:
            raise AssertionError(f"{len(faults)} of {number}: {'; '.join(dict.fromkeys(faults))}")

    assert mounts.fault_in_child(try_all) == ""


def limit_memory() -> None:
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + _MEMORY_BYTES, -1))


def faults_of(number: int, path: Path, mutate: Mutate, read: Callable[[], None]) -> Iterator[str]:
    def late(*_: object) -> None:
        raise TimeoutError(f"more than {_LIMIT_S} s")

    signal.signal(signal.SIGALRM, late)
    for seed in range(number):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(mutate(random.Random(seed)))
        signal.alarm(_LIMIT_S)
        try:
            read()
        except BaseException as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            where = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace is not None else ""
            yield f"{type(error).__name__} at {where}: {str(error)[:80]!r}, as with seed {seed}"
        finally:
            signal.alarm(0)
