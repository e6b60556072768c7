"""A temporary view of the file system for one trial. The trial reads the real files; what it writes goes to layers that
no other process sees. Where the system does not allow this, the module reports the reason. Directories that cannot be
covered are always reported."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from slipstream.sandbox import mounts
from slipstream.sandbox.overlap import Overlaps, is_below, is_same
from slipstream.sandbox.temporary_folder import PROBE_PREFIX, TemporaryFolder, places, remove_tree
from slipstream.store.safe_files import UnsafeFileError

_PASS_THROUGH: Final = ("/proc", "/sys", "/dev", "/run")
_CACHE_VARIABLES: Final = (
    "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME",
    "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH", "NLTK_DATA", "KERAS_HOME", "PIP_CACHE_DIR",
    "SLIPSTREAM_CACHE",
)  # fmt: skip
_CACHE_FOLDERS: Final = (".cache", ".triton", ".nv", "nltk_data", ".keras", ".torch", ".fastai")
# Files with access tokens that libraries keep in their caches, at the top or one level below.
_TOKENS: Final = ("token", "stored_tokens", "credentials", "credentials.json", "kaggle.json", "access_token", ".netrc")


class KeptDownload(msgspec.Struct, frozen=True):
    """A download of an earlier trial: a file or directory that the real file system does not have."""

    path: str  # where the script expects it
    tree: str  # where it is stored


class Layer(msgspec.Struct, frozen=True):
    """One overlay. What is written below `path` goes to `<directory>/u`."""

    path: str
    directory: str
    lower: str


class OverlayPlan(msgspec.Struct, frozen=True):
    """The mounts of a trial's view. The parent makes the plan, and the trial carries it out before anything else."""

    workspace: str  # the workspace directory: layers and the mount point
    own_user: bool
    layers: list[Layer]
    binds: list[str]
    through: list[str]  # caches and the spool directory: the real directories stay visible and writable
    kept: list[KeptDownload] = []
    made: list[str] = []  # directories that were created in order to pass them through
    bare: list[str] = []  # directories whose direct entries no layer covers
    tokens: list[str] = []  # files in caches; the trial gets copies, which disappear with its view
    over: list[KeptDownload] = []  # files that have another content for this trial; the content is in `tree`


def probe() -> tuple[Path | None, bool, str]:
    """Returns a directory for layers and whether a user namespace is needed. If overlays are not possible, the
    directory is None and the last value is the reason."""
    if sys.platform != "linux":
        return None, False, "only Linux has file system overlays"
    reason = ""
    # Root needs only a mount namespace. Other users need a user namespace around it.
    for own_user in (False, True) if os.geteuid() == 0 else (True,):
        for parent in places():
            reason = _try_in_child(parent, own_user)
            if not reason:
                return parent, own_user, ""
    return None, False, reason


def temporary_directory() -> Path:
    return Path(tempfile.gettempdir())


def _try_in_child(parent: Path, own_user: bool) -> str:
    """Mounts an overlay once, in a child process that then ends. Returns the reason if this fails, else ""."""
    folder = TemporaryFolder(PROBE_PREFIX, parent)
    try:
        return _mount_in_child(folder.path, own_user)
    finally:
        folder.remove()


def _mount_in_child(workspace: Path, own_user: bool) -> str:
    for name in ("u", "w", "root"):
        (workspace / name).mkdir()

    def mount() -> None:
        mounts.enter_namespaces(own_user=own_user)
        mounts.mount_overlay(
            "/usr" if Path("/usr").is_dir() else "/", str(workspace), f"{workspace}/root", own_user=own_user
        )
        Path(workspace, "root", "written").write_text("")

    return mounts.fault_in_child(mount)


def prepare(
    workspace: Path, *, own_user: bool, through: list[str], kept: list[KeptDownload], protected: Sequence[Path] = ()
) -> OverlayPlan:
    """Plans how to handle every mount of the machine, and creates the empty layers. A cache is not passed through if it
    is one of the `protected` folders, contains one, or is inside one."""
    covers, binds, bare = _split_for_user() if own_user else (*_whole_mounts(), [])
    real = dict.fromkeys(os.path.realpath(folder) for folder in protected)
    covers += [path for path in real if any(is_below(path, top) for top in _PASS_THROUGH)]  # for example in /dev/shm
    layers = [_new_layer(workspace, index, path, path) for index, path in enumerate(covers)]
    for item in kept:
        if Path(item.tree).is_dir():
            layers.append(_new_layer(workspace, len(layers), item.path, item.tree))
    (workspace / "root").mkdir()
    made = [path for path in _caches_to_make(protected) if not _make(path)]
    known = [path for path in dict.fromkeys([*through, *cache_directories(protected)]) if Path(path).is_dir()]
    (workspace / "tokens").mkdir()
    return OverlayPlan(str(workspace), own_user, layers, binds, known, kept, made, bare, list(_tokens(known)))


def _tokens(caches: list[str]) -> Iterator[str]:
    found = [os.environ.get("HF_TOKEN_PATH", "")]
    for cache in caches:
        for name in _TOKENS:
            found += [str(path) for path in (*Path(cache).glob(name), *Path(cache).glob(f"*/{name}"))]
    for path in dict.fromkeys(os.path.realpath(path) for path in found if path):
        if os.path.isfile(path) and any(is_below(path, cache) for cache in caches):
            yield path


def _whole_mounts() -> tuple[list[str], list[str]]:
    """For root: plans one layer for each file system, including the root directory. File systems that cannot be covered
    are bind-mounted."""
    covers: list[str] = []
    binds = [path for path in _PASS_THROUGH if Path(path).is_dir() and not Path(path).is_symlink()]
    for mount in mounts.mounts():
        if any(is_below(mount.path, path) for path in _PASS_THROUGH):
            continue
        (covers if _can_cover(mount) else binds).append(mount.path)
    return covers, binds


def _split_for_user() -> tuple[list[str], list[str], list[str]]:
    """For other users: bind-mounts the root directory with everything that is mounted in it, and plans layers on
    directories without a mount inside. The reason: in a user namespace the kernel does not give access to what is
    hidden below a mount."""
    known = mounts.mounts()
    points = {mount.path for mount in known}
    covers: list[str] = []
    bare: list[str] = []

    def split(path: str) -> None:
        if any(is_below(path, top) for top in _PASS_THROUGH):
            return
        if not any(point != path and is_below(point, path) for point in points):
            covers.append(path)
            return
        if os.access(path, os.W_OK):
            bare.append(path)
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False) and entry.path not in points:
                split(entry.path)

    for mount in known:
        if _can_cover(mount):
            split(mount.path)
    return covers, ["/"], bare


def _can_cover(mount: mounts.Mount) -> bool:
    return not mount.is_special and not mount.is_read_only and Path(mount.path).is_dir()


def _new_layer(workspace: Path, index: int, path: str, lower: str) -> Layer:
    directory = workspace / str(index)
    for name in ("u", "w"):
        (directory / name).mkdir(parents=True)
    shutil.copymode(lower, directory / "u")
    return Layer(path, str(directory), lower)


def cache_directories(protected: Sequence[Path] = ()) -> list[str]:
    """Returns the caches that trials share with all other programs of the user."""
    return sorted({os.path.realpath(path) for path in _caches(protected) if Path(path).is_dir()})


def _caches(protected: Sequence[Path]) -> Iterator[str]:
    """Yields the cache directories that are passed through, existing or not. A folder that overlaps with a protected
    folder is left out, with one exception: if the home folder itself is protected, its usual folders are passed
    through, because they contain only caches."""
    overlaps, home = Overlaps(), os.path.realpath(Path.home())

    def is_outside(path: str, folder: Path, *, may_be_in_home: bool = False) -> bool:
        if may_be_in_home and is_same(home, folder):
            return not overlaps.contains(path, folder)
        return not overlaps.overlap(path, folder)

    for path in [*(path for _, path in _named_caches()), _compiled_kernels()]:
        if all(is_outside(path, folder) for folder in protected):
            yield path
    for path in _home_caches():
        is_link = os.path.realpath(path) != path
        if all(is_outside(path, folder, may_be_in_home=not is_link) for folder in protected):
            yield path


def covered_caches(protected: Sequence[Path]) -> list[tuple[str, str]]:
    """Returns the caches that are not passed through. Each is a pair: what leads to it, such as an environment
    variable, and the path."""
    passed = cache_directories(protected)
    caches = [*_named_caches(), *(("in the home folder", path) for path in _home_caches())]
    caches.append(("in the folder for temporary files", _compiled_kernels()))
    real = [(name, os.path.realpath(path)) for name, path in caches if Path(path).is_dir()]
    return [(name, path) for name, path in real if not any(is_below(path, top) for top in passed)]


def _named_caches() -> list[tuple[str, str]]:
    """Returns the environment variables that name a cache, with the path."""
    return [(name, os.environ[name]) for name in _CACHE_VARIABLES if os.environ.get(name)]


def _home_caches() -> list[str]:
    home = os.path.realpath(Path.home())
    return [os.path.join(home, name) for name in _CACHE_FOLDERS]


def _compiled_kernels() -> str:
    """Returns where torch's compiler stores compiled kernels, unless a variable says otherwise."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may have no user name
        user = f"uid_{os.getuid()}"
    return os.path.join(tempfile.gettempdir(), "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user))


@contextlib.contextmanager
def shared_caches(protected: Sequence[Path] = ()) -> Iterator[None]:
    """Creates the caches that do not exist yet, around a sequence of trials, so that all trials share them. Without
    this, a new cache would be in the layer of the trial that creates it, and would be deleted with the layer. Every
    trial would then compile the same kernels again. Caches that stay empty are removed after the last trial."""
    wanted = _caches_to_make(protected)
    kernels = _compiled_kernels()
    if kernels in _caches(protected) and not Path(kernels).exists():
        wanted.append(kernels)
    made = [path for path in wanted if not _make(path)]
    try:
        yield
    finally:
        _remove_empty(made)


def _caches_to_make(protected: Sequence[Path]) -> list[str]:
    """Returns the caches that a variable names, and ~/.cache, if they do not exist yet."""
    named = {os.path.realpath(path) for _, path in _named_caches()}
    wanted = {*named, os.path.join(os.path.realpath(Path.home()), ".cache")}
    allowed = {os.path.realpath(path) for path in _caches(protected)}
    return sorted(path for path in wanted & allowed if not os.path.lexists(path))


def _make(path: str) -> bool:
    """Creates a directory. Returns False if this call created it, and True if it already existed or cannot be
    created."""
    try:
        Path(path).mkdir()
    except OSError:
        return True
    return False


def enter(plan: OverlayPlan) -> list[str]:
    """Carries out the plan in this process, which must have a single thread. Returns the directories that could not be
    covered."""
    cwd = os.getcwd()
    root = f"{plan.workspace}/root"
    mounts.enter_namespaces(own_user=plan.own_user)
    uncovered: list[str] = []
    steps: list[tuple[str, Layer | None]] = [(layer.path, layer) for layer in plan.layers if layer.lower == layer.path]
    steps += [(path, None) for path in plan.binds]
    for path, layer in sorted(steps, key=lambda step: (step[0] != "/", step[0].count("/"), step[0])):
        target = root + path.rstrip("/")
        if layer is None or not _cover(layer, target, plan.own_user):
            if layer is not None:
                uncovered.append(path)
            _bind(path, target)
    _show_downloads(plan, root, uncovered)
    _lay_over(plan, root, uncovered)
    for path in plan.through:
        _bind(path, root + path)
    _copy_tokens(plan, root)
    mounts.change_root(root)
    os.chdir(cwd)
    if plan.own_user and os.geteuid() != 0:
        mounts.drop_capabilities()
    return uncovered


def _cover(layer: Layer, target: str, own_user: bool) -> bool:
    try:
        mounts.mount_overlay(layer.lower, layer.directory, target, own_user=own_user)
    except OSError:
        return False
    return True


def _bind(path: str, target: str) -> None:
    try:
        mounts.bind(path, target)
    except OSError:
        if path in ("/", "/proc", "/dev"):
            raise  # no program runs without these


def _show_downloads(plan: OverlayPlan, root: str, uncovered: list[str]) -> None:
    """Shows kept downloads where the script expects them. The script downloads again what cannot be shown."""
    layers = {layer.path: layer for layer in plan.layers if layer.lower != layer.path}
    around = msgspec.structs.replace(plan, layers=[layer for layer in plan.layers if layer.lower == layer.path])
    for item in plan.kept:
        if not covers(around, item.path, uncovered):
            continue  # the download would be created on the real disk
        with contextlib.suppress(OSError):
            target = _inside(root, item.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            if item.path in layers:
                target.mkdir()
                _cover(layers[item.path], str(target), plan.own_user)
            elif Path(item.tree).is_file():
                shutil.copy2(item.tree, target)


def _copy_tokens(plan: OverlayPlan, root: str) -> None:
    """Lays a copy over each token. The copies are in memory that belongs to this view, so that none stays on disk."""
    if not plan.tokens:
        return
    place = f"{plan.workspace}/tokens"
    mounts.mount_memory(place)
    for number, path in enumerate(plan.tokens):
        copy = f"{place}/{number}"
        with contextlib.suppress(FileNotFoundError):  # the token was removed meanwhile
            shutil.copy2(path, copy)
            mounts.bind(copy, root + path)


def _lay_over(plan: OverlayPlan, root: str, uncovered: list[str]) -> None:
    for item in plan.over:
        if not covers(plan, item.path, uncovered):
            raise OSError(f"no layer covers {item.path}, so the real file would be changed")
        shutil.copy2(item.tree, _inside(root, item.path))


def _inside(root: str, path: str) -> Path:
    """Returns where `path` is in the view. The view is not the root directory yet, so a link in the view may lead to
    the real disk. A kept download may contain such a link. Raises UnsafeFileError if the path goes through a link."""
    target = root + path
    if os.path.realpath(target) != os.path.realpath(root) + path:
        raise UnsafeFileError("leads out of the trial's view through a link", Path(target))
    return Path(target)


def covers(plan: OverlayPlan, path: str, uncovered: list[str] | None = None) -> bool:
    """Whether writes to this path go to a layer. The path must not contain links."""
    tops = [layer.path for layer in plan.layers]
    nearest = max((top for top in [*tops, *plan.binds, *plan.through] if is_below(path, top)), key=len, default="")
    return nearest in tops and nearest not in (uncovered or []) and os.path.dirname(path) not in plan.bare


def written(plan: OverlayPlan) -> Iterator[tuple[str, Path]]:
    """Yields every file that the trial wrote or deleted: the path that the trial used, and the path in the layer."""
    seeds = {item.path for item in plan.kept}
    for layer in plan.layers:
        upper = Path(layer.directory, "u")
        for folder, folders, names in os.walk(upper):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in sorted(names):
                place = Path(folder, name)
                path = str(Path(layer.path) / place.relative_to(upper))
                if path not in seeds:
                    yield path, place


def is_deletion(place: Path) -> bool:
    """Whether the file is the overlay's mark for a deleted file."""
    facts = place.lstat()
    return stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0


def clean_up(plan: OverlayPlan) -> None:
    remove_tree(Path(plan.workspace))
    _remove_empty(plan.made)


def _remove_empty(made: list[str]) -> None:
    for path in made:
        try:
            Path(path).rmdir()
        except OSError:
            continue  # the directory was used, so it stays
