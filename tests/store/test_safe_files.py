"""Files that a cloned repository or another user can put into our folders are not trusted: links are not followed, and
pipes do not block."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.sandbox import downloads
from slipstream.store import index
from slipstream.store.safe_files import UnsafeFileError, append_file, open_directory, read_file, write_file
from slipstream.store.sessions import (
    StorageError,
    known_speedtest,
    latest,
    load_session,
    make_folder,
    newest_first,
    save_session,
)
from slipstream.testing.made_sessions import made_session

SECRET = b"not yours to overwrite"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user outside the project."""
    path = tmp_path / "home" / ".bashrc"
    path.parent.mkdir()
    path.write_bytes(SECRET)
    return path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "clone"
    path.mkdir()
    return path


# Each function creates something other than a regular file at a path.
Plant = Callable[[Path, Path], None]
PLANTS: dict[str, Plant] = {
    "link": lambda path, victim: path.symlink_to(victim),
    "dangling link": lambda path, victim: path.symlink_to(victim.with_name("new")),
    "pipe": lambda path, victim: os.mkfifo(path),
    "directory": lambda path, victim: path.mkdir(),
    "endless device": lambda path, victim: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_only_regular_files_are_read_and_written(project: Path, victim: Path, plant: Plant) -> None:
    path = project / "file"
    plant(path, victim)
    with pytest.raises(OSError):
        read_file(path, 100)
    with pytest.raises(OSError):
        append_file(path, b"more")
    if path.is_dir():
        with pytest.raises(UnsafeFileError, match="directory"):
            write_file(path, b"new")
    else:
        write_file(path, b"new")
        assert not path.is_symlink() and path.read_bytes() == b"new"
    assert sorted(victim.parent.iterdir()) == [victim] and victim.read_bytes() == SECRET
    assert [entry.name for entry in project.iterdir()] == ["file"]


def test_file_with_a_second_hard_link_is_not_appended_to(project: Path, victim: Path) -> None:
    os.link(victim, project / "journal")
    with pytest.raises(UnsafeFileError, match="another name"):
        append_file(project / "journal", b"more")
    assert victim.read_bytes() == SECRET


def test_a_file_over_the_limit_is_not_read(project: Path) -> None:
    (project / "file").write_bytes(bytes(101))
    with pytest.raises(UnsafeFileError, match="101 bytes"):
        read_file(project / "file", 100)


def test_a_folder_that_is_a_link_is_refused(project: Path, victim: Path) -> None:
    (project / ".slipstream").symlink_to(victim.parent)
    with pytest.raises(StorageError, match="is a link"):
        save_session(made_session(), project)
    with pytest.raises(UnsafeFileError, match="is a link"):
        make_folder(project)
    downloads.forget_downloads(project)
    assert [path.name for path in victim.parent.iterdir()] == [victim.name]


def test_a_folder_that_others_can_write_is_refused(project: Path) -> None:
    folder = open_directory(project / ".slipstream")
    project.chmod(0o755)
    folder.chmod(0o777)
    with pytest.raises(UnsafeFileError, match="other users"):
        open_directory(folder)
    project.chmod(0o777)  # a user who can write here can replace the folder anyway
    open_directory(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_folder_of_another_user_is_refused(project: Path) -> None:
    folder = open_directory(project / ".slipstream")
    os.chown(folder, 12345, 12345)
    with pytest.raises(UnsafeFileError, match="another user"):
        open_directory(folder)
    os.chown(project, 12345, 12345)  # as for root in a container, in a folder of the user
    open_directory(folder)


def test_links_inside_the_folder_are_not_followed(project: Path, victim: Path) -> None:
    """The index, the ignore file, the speed test and the folder of sessions, each as a link."""
    folder = make_folder(project)
    (folder / ".gitignore").unlink()
    (folder / ".gitignore").symlink_to(victim.with_name("made"))  # a dangling link: open() would create the file
    database = victim.with_name("places.sqlite")
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE bookmarks (name TEXT)")
    before = database.read_bytes()
    place = index.index_path(folder)
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    place.symlink_to(database)
    os.mkfifo(folder / "machine.msgpack")
    assert make_folder(project) == folder and known_speedtest(project) is None
    saved = save_session(made_session(), project)
    assert [entry.name for entry in index.entries(folder)] == [saved.name.removesuffix(index.SUFFIX)]
    assert database.read_bytes() == before and not victim.with_name("made").exists()

    (folder / "sessions").rename(project / "elsewhere")
    (folder / "sessions").symlink_to(project / "elsewhere")
    with pytest.raises(StorageError, match="is a link"):
        save_session(made_session(), project)


def test_session_that_is_not_a_regular_file_is_ignored(project: Path, victim: Path) -> None:
    saved = save_session(made_session(), project)
    for name, plant in PLANTS.items():
        plant(saved.with_name(f"2999-{name}{index.SUFFIX}"), victim)
    assert newest_first(project) == [saved] and latest(project) == saved
    assert len(index.entries(project / ".slipstream")) == 1
    for name in PLANTS:
        with pytest.raises(StorageError):
            load_session(saved.with_name(f"2999-{name}{index.SUFFIX}"))


def plant_download(project: Path, path: str, content: bytes = b"evil") -> Path:
    entry = project / ".slipstream" / "kept" / "0123456789abcdef"
    entry.mkdir(parents=True)
    (entry / "path").write_text(path)
    (entry / "tree").write_bytes(content)
    return entry


@pytest.mark.parametrize(
    "path", ["{home}/.new", "/../{home}/.bashrc", "x/../../home/.bashrc", "{project}/../home/.new"]
)
def test_a_planted_download_outside_of_the_project_is_dropped(project: Path, victim: Path, path: str) -> None:
    entry = plant_download(project, path.format(home=victim.parent, project=project))
    assert downloads.kept_downloads(project) == []
    assert not entry.exists() and victim.read_bytes() == SECRET


def test_a_planted_download_through_a_link_is_dropped(project: Path, victim: Path) -> None:
    (project / "data").symlink_to(victim.parent)
    plant_download(project, str(project / "data" / "new"))
    assert downloads.kept_downloads(project) == []


@pytest.mark.parametrize("name", ["path", "tree"])
@pytest.mark.parametrize("plant", [PLANTS["link"], PLANTS["pipe"]], ids=["link", "pipe"])
def test_planted_download_must_consist_of_regular_files(project: Path, victim: Path, name: str, plant: Plant) -> None:
    entry = plant_download(project, str(project / "new"))
    (entry / name).unlink()
    plant(entry / name, victim)
    assert downloads.kept_downloads(project) == [] and victim.read_bytes() == SECRET


def test_download_inside_the_project_is_trusted(project: Path) -> None:
    entry = plant_download(project, str(project / "data.bin"))
    assert [(item.path, item.tree) for item in downloads.kept_downloads(project)] == [
        (str(project / "data.bin"), str(entry / "tree"))
    ]
    (project / "data.bin").symlink_to("nowhere")  # a dangling link counts as existing
    assert downloads.kept_downloads(project) == [] and not entry.exists()


@pytest.mark.parametrize("inner", ["data/link/.bashrc", "data"])
def test_a_planted_download_inside_another_is_dropped(project: Path, victim: Path, inner: str) -> None:
    """The path of the inner folder leads through a link inside the outer folder."""
    tree = project / ".slipstream" / "kept" / "fedcba9876543210" / "tree"
    tree.mkdir(parents=True)
    (tree / "link").symlink_to(victim.parent)
    (tree.parent / "path").write_text(str(project / "data"))
    plant_download(project, str(project / inner))
    assert len(downloads.kept_downloads(project)) == 1
    assert len(downloads.kept_downloads(project)) == 1, "the other one is deleted"


def test_a_download_is_not_moved_through_a_planted_link(project: Path, victim: Path) -> None:
    top = str(project / "data")
    fetched = project / "fetched"
    fetched.write_bytes(b"new")
    downloads._keep(project, top, [(f"{top}/first", fetched)])
    (item,) = downloads.kept_downloads(project)
    (Path(item.tree) / "sub").symlink_to(victim.parent)
    fetched.write_bytes(b"new")
    with pytest.raises(UnsafeFileError, match="link"):
        downloads._keep(project, top, [(f"{top}/sub/.bashrc", fetched)])
    assert victim.read_bytes() == SECRET
