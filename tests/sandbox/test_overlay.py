"""A child process writes to many places under a real overlay. The real file system does not change."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from slipstream.launch.target import protected_folders
from slipstream.sandbox import mounts, overlay
from slipstream.sandbox.temporary_folder import remove_tree

PARENT, OWN_USER, REASON = overlay.probe()
pytestmark = pytest.mark.skipif(PARENT is None, reason=REASON or "no overlay")


@pytest.fixture
def workspace() -> Iterator[Path]:
    assert PARENT is not None
    path = Path(tempfile.mkdtemp(prefix="slipstream-test-", dir=PARENT))
    yield path
    remove_tree(path)
    assert not path.exists()


def in_child(plan: overlay.OverlayPlan, act: Callable[[], None]) -> None:
    """Runs `act` in a process that has entered the view."""

    def enter_and_act() -> None:
        assert overlay.enter(plan) == []
        act()

    assert mounts.fault_in_child(enter_and_act) == ""


@pytest.mark.parametrize("own_user", [False, True] if not OWN_USER else [True])
def test_real_file_system_does_not_change(
    tmp_path: Path, workspace: Path, own_user: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "a,b:c\\d e"
    work.mkdir()
    (work / "old.txt").write_text("old")
    (work / "gone.txt").write_text("gone")
    through = tmp_path / "through"
    through.mkdir()
    home = Path.home()
    monkeypatch.chdir(work)
    plan = overlay.prepare(workspace, own_user=own_user, through=[str(through)], kept=[])
    uid = os.getuid()

    def act() -> None:
        assert os.getcwd() == str(work) and os.getuid() == uid
        Path("old.txt").write_text("new")
        Path("gone.txt").unlink()
        Path("deep/er").mkdir(parents=True)
        Path("deep/er/checkpoint.pt").write_text("weights")
        assert Path("deep/er/checkpoint.pt").read_text() == "weights" and Path("old.txt").read_text() == "new"
        (home / "slipstream-test").write_text("")
        (through / "kept").write_text("kept")
        assert Path("/proc/self/status").exists() and Path("/dev/null").exists()

    in_child(plan, act)
    assert {path.name: path.read_text() for path in work.iterdir()} == {"old.txt": "old", "gone.txt": "gone"}
    assert not (home / "slipstream-test").exists()
    assert (through / "kept").read_text() == "kept"
    seen = {path: overlay.is_deletion(place) for path, place in overlay.written(plan)}
    assert seen == {
        str(work / "old.txt"): False,
        str(work / "gone.txt"): True,
        str(work / "deep/er/checkpoint.pt"): False,
        str(home / "slipstream-test"): False,
    }
    overlay.clean_up(plan)


def test_caches_pass_through(tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    (tmp_path / "torch").mkdir()
    plan = overlay.prepare(workspace, own_user=OWN_USER, through=[], kept=[])

    def act() -> None:
        (tmp_path / "torch" / "weights").write_text("w")

    in_child(plan, act)
    overlay.clean_up(plan)
    assert (tmp_path / "torch" / "weights").read_text() == "w"
    assert not (tmp_path / "hub").exists()  # created to be passed through, and removed because it was not used


def test_a_kept_download_does_not_lead_to_the_real_disk(tmp_path: Path, workspace: Path) -> None:
    """Links of a kept tree lead to the real disk while the view is made."""
    home, tree, file = tmp_path / "home", tmp_path / "tree", tmp_path / "file"
    home.mkdir(), tree.mkdir()
    (home / "old").write_text("old")
    (tree / "link").symlink_to(home)
    (tree / "data.bin").write_text("data")
    file.write_text("evil")
    data = tmp_path / "project" / "data"
    data.parent.mkdir()
    kept = [
        overlay.KeptDownload(str(data), str(tree)),
        overlay.KeptDownload(f"{data}/link/old", str(file)),
        overlay.KeptDownload(f"{data}/link/new", str(tree)),
        overlay.KeptDownload(f"{file}/below", str(file)),  # below a file, where nothing can be
    ]
    plan = overlay.prepare(workspace, own_user=OWN_USER, through=[], kept=kept)

    def act() -> None:
        assert (data / "data.bin").read_text() == "data"

    in_child(plan, act)
    assert [path.name for path in home.iterdir()] == ["old"] and (home / "old").read_text() == "old"
    overlay.clean_up(plan)


@pytest.mark.skipif(not os.access("/run", os.W_OK), reason="/run cannot be written")
def test_a_kept_download_is_not_placed_where_nothing_is_covered(workspace: Path, tmp_path: Path) -> None:
    file, uncovered = tmp_path / "file", Path("/run") / f"slipstream-test-{os.getpid()}"
    file.write_text("evil")
    kept = [overlay.KeptDownload(str(uncovered), str(file))]
    plan = overlay.prepare(workspace, own_user=OWN_USER, through=[], kept=kept)
    in_child(plan, lambda: None)
    assert not uncovered.exists()
    overlay.clean_up(plan)


def names(cache: Path, home: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `cache` a cache directory, through a variable or through a link in the home folder."""
    if how == "link":
        (home / ".cache").symlink_to(cache)
    else:
        monkeypatch.setenv(how, str(cache))


@pytest.mark.parametrize("how", [*overlay._CACHE_VARIABLES, "link"])
@pytest.mark.parametrize("place", ["", "work", "work/inside", "scripts", "scripts/inside"])
def test_no_cache_makes_the_working_directory_writable(
    tmp_path: Path, workspace: Path, how: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A configured cache may contain, be, or be inside the working directory or the script's folder. In all cases the
    files there do not change."""
    home, project = tmp_path / "home", tmp_path / "project"
    for folder in (home, project / "work" / "inside", project / "scripts" / "inside"):
        folder.mkdir(parents=True)
    work, script = project / "work", project / "scripts" / "train.py"
    for file in (work / "old.txt", work / "inside" / "old.txt", script, project / "scripts" / "inside" / "old.txt"):
        file.write_text("old")
    for name in overlay._CACHE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    names(project / place, home, how, monkeypatch)
    monkeypatch.chdir(work)
    before = {path: path.read_text() for path in project.rglob("*") if path.is_file()}
    protected = protected_folders(work, ["../scripts/train.py"])
    plan = overlay.prepare(workspace, own_user=OWN_USER, through=[], kept=[], protected=protected)

    def act() -> None:
        for path in before:
            path.write_text("new")
        (work / "inside" / "old.txt").unlink()
        (work / "new.txt").write_text("new")

    in_child(plan, act)
    overlay.clean_up(plan)
    assert {path: path.read_text() for path in project.rglob("*") if path.is_file()} == before


def test_usual_caches_pass_through_if_the_home_folder_is_the_working_directory(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".cache").mkdir()
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "other"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / ".cache"))
    passed = overlay.cache_directories([tmp_path])
    assert str(tmp_path / ".cache") in passed and str(tmp_path / "other") not in passed
    assert overlay.covered_caches([tmp_path]) == [("HF_HOME", str(tmp_path / "other"))]
    (tmp_path / ".cache" / "project").mkdir()
    assert str(tmp_path / ".cache") not in overlay.cache_directories([tmp_path, tmp_path / ".cache" / "project"])


def test_no_usual_cache_passes_through_inside_the_working_directory(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home folder and the folder for temporary files are inside the working directory."""
    for name in ("home", "home/.cache", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOGNAME", "someone")
    for name in overlay._CACHE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    kernels = tmp_path / "tmp" / "torchinductor_someone"
    kernels.mkdir()
    assert overlay.cache_directories([tmp_path]) == []
    covered = [path for _, path in overlay.covered_caches([tmp_path])]
    assert covered == [str(tmp_path / "home" / ".cache"), str(kernels)]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_a_second_mount_of_the_working_directory_does_not_pass_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, cache = tmp_path / "project" / "work", tmp_path / "cache"
    for folder in (work / "sub", cache / "whole", cache / "part"):
        folder.mkdir(parents=True)
    for name in overlay._CACHE_VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def passes(path: Path, protected: Path) -> bool:
        monkeypatch.setenv("HF_HOME", str(path))
        return str(path) in overlay.cache_directories([protected])

    for source, name in ((work, "whole"), (work / "sub", "part")):
        place = cache / name
        assert passes(cache, work)
        if subprocess.run(["mount", "--bind", str(source), str(place)], capture_output=True).returncode:
            pytest.skip("no mounts here")
        try:
            for path in (cache, place):
                assert not passes(path, work)
            for path in (tmp_path / "project", work, work / "sub"):
                assert not passes(path, place)
        finally:
            subprocess.run(["umount", str(place)], check=True)


def test_a_cache_is_not_made_in_the_working_directory(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    with overlay.shared_caches([tmp_path]):
        plan = overlay.prepare(workspace, own_user=OWN_USER, through=[], kept=[], protected=[tmp_path])
        assert list(tmp_path.iterdir()) == []
    overlay.clean_up(plan)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm")
def test_a_working_directory_in_shared_memory_is_covered(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev is passed through as a whole, except for the working directory inside it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        work = Path(name)
        (work / "old.txt").write_text("old")
        monkeypatch.chdir(work)
        plan = overlay.prepare(workspace, own_user=OWN_USER, through=[], kept=[], protected=[work, work])

        def act() -> None:
            Path("old.txt").write_text("new")
            (work / "new.txt").write_text("new")

        in_child(plan, act)
        monkeypatch.undo()
        assert {path.name: path.read_text() for path in work.iterdir()} == {"old.txt": "old"}
        assert sorted(path for path, _ in overlay.written(plan)) == [f"{work}/new.txt", f"{work}/old.txt"]
        overlay.clean_up(plan)


def test_compiled_kernels_are_shared_between_trials(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "some:one")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kernels = tmp_path / "torchinductor_some_one"  # the name that torch uses

    def compile_it() -> None:
        (kernels / "kernel.so").write_text("compiled")

    def find_it() -> None:
        assert (kernels / "kernel.so").read_text() == "compiled"

    with overlay.shared_caches():
        for number, act in enumerate((compile_it, find_it)):
            (workspace / str(number)).mkdir()
            plan = overlay.prepare(workspace / str(number), own_user=OWN_USER, through=[], kept=[])
            in_child(plan, act)
            overlay.clean_up(plan)
    assert (kernels / "kernel.so").exists()  # it was used, so it stays


def test_unused_cache_is_removed(tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "someone")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = {tmp_path / "torchinductor_someone", tmp_path / "hub"}
    with overlay.shared_caches():
        plan = overlay.prepare(workspace, own_user=OWN_USER, through=[], kept=[])
        overlay.clean_up(plan)  # of the first trial; other trials still use the caches
        assert made <= set(tmp_path.iterdir())
    assert not made & set(tmp_path.iterdir())


def test_kept_downloads_appear(tmp_path: Path, workspace: Path) -> None:
    kept = tmp_path / "kept"
    (kept / "one").mkdir(parents=True)
    (kept / "one" / "data.bin").write_text("data")
    (kept / "two").write_text("file")
    items = [
        overlay.KeptDownload(str(tmp_path / "new" / "set"), str(kept / "one")),
        overlay.KeptDownload(str(tmp_path / "loose.zip"), str(kept / "two")),
    ]
    plan = overlay.prepare(workspace, own_user=OWN_USER, through=[], kept=items)

    def act() -> None:
        assert (tmp_path / "new/set/data.bin").read_text() == "data"
        assert (tmp_path / "loose.zip").read_text() == "file"
        (tmp_path / "new/set/data.bin").write_text("changed")

    in_child(plan, act)
    assert (kept / "one" / "data.bin").read_text() == "data"
    assert not (tmp_path / "new").exists() and not (tmp_path / "loose.zip").exists()
    assert [path for path, _ in overlay.written(plan)] == [str(tmp_path / "new/set/data.bin")]


def test_existing_directory_can_be_renamed(tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slipstream.sandbox import overlay_rename

    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.pt").write_text("weights")
    monkeypatch.chdir(tmp_path)
    plan = overlay.prepare(workspace, own_user=True, through=[], kept=[])

    def act() -> None:
        overlay_rename.allow_moving_directories()
        Path("checkpoints").rename("checkpoints.old")
        assert Path("checkpoints.old/last.pt").read_text() == "weights" and not Path("checkpoints").exists()

    in_child(plan, act)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


@pytest.mark.parametrize("own_user", [False, True] if not OWN_USER else [True])
def test_trial_can_see_another_content_of_a_file(tmp_path: Path, workspace: Path, own_user: bool) -> None:
    real, other, through = tmp_path / "train.py", tmp_path / "other.py", tmp_path / "through"
    real.write_text("old")
    other.write_text("new")
    through.mkdir()
    plan = overlay.prepare(workspace, own_user=own_user, through=[str(through)], kept=[])
    plan = msgspec.structs.replace(plan, over=[overlay.KeptDownload(str(real), str(other))])

    def act() -> None:
        assert real.read_text() == "new"

    in_child(plan, act)
    assert real.read_text() == "old"
    assert overlay.covers(plan, str(real))
    assert not overlay.covers(plan, str(through / "x.py")) and not overlay.covers(plan, "/proc/x")
    assert not overlay.covers(plan, str(real), [layer.path for layer in plan.layers])


def test_uncovered_file_is_never_replaced(tmp_path: Path) -> None:
    real, other = tmp_path / "train.py", tmp_path / "other.py"
    real.write_text("old")
    other.write_text("new")
    plan = overlay.OverlayPlan(str(tmp_path), True, [], ["/"], [], over=[overlay.KeptDownload(str(real), str(other))])
    with pytest.raises(OSError, match="would be changed"):
        overlay._lay_over(plan, "", [])
    assert real.read_text() == "old"


def test_tokens_can_be_read_and_are_never_changed(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    files = [home / ".netrc", home / ".kaggle/kaggle.json", home / ".cache/huggingface/token", tmp_path / "hub/token"]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("secret")
        file.chmod(0o600)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    plan = overlay.prepare(workspace, own_user=OWN_USER, through=[], kept=[])

    def act() -> None:
        for file in files:
            assert file.read_text() == "secret" and file.stat().st_mode & 0o777 == 0o600
            file.write_text("stolen")
            assert file.read_text() == "stolen"
        (home / ".cache/huggingface/model").write_text("weights")  # the cache itself stays writable

    in_child(plan, act)
    assert [file.read_text() for file in files] == ["secret"] * 4
    assert (home / ".cache/huggingface/model").read_text() == "weights"
    assert not [path for path in workspace.rglob("*") if path.is_file() and "secret" in path.read_text()]
    overlay.clean_up(plan)
