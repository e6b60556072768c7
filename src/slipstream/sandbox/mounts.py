"""System calls for a private view of the file system: namespaces, mounts, capabilities. For Linux only. This module
decides nothing."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWNET: Final = 0x40000000
_MS_BIND: Final = 4096
_MS_REC: Final = 16384
_MS_PRIVATE: Final = 1 << 18
_MNT_DETACH: Final = 2
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_CAPABILITY_VERSION: Final = 0x20080522
_SYS_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}

# File systems that get no overlay. Scripts store no results there, and an overlay would fail or behave differently.
_SPECIAL_KINDS: Final = {
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
    "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "ramfs", "rpc_pipefs", "securityfs", "squashfs",
    "sysfs", "tracefs",
}  # fmt: skip


class Mount:
    """One line of /proc/self/mountinfo."""

    def __init__(self, line: str) -> None:
        fields = line.split(" ")
        separator = fields.index("-")
        self.device = fields[2]
        self.root = _unescape(fields[3])  # the directory of the file system that is mounted, "/" for all of it
        self.path = _unescape(fields[4])
        self.is_read_only = "ro" in fields[5].split(",")
        self.kind = fields[separator + 1]

    @property
    def is_special(self) -> bool:
        return self.kind in _SPECIAL_KINDS


def _unescape(field: str) -> str:
    return field.encode().decode("unicode_escape").encode("latin-1").decode("utf-8", "surrogateescape")


def mounts() -> list[Mount]:
    """Returns the visible mounts, parents before children."""
    last: dict[str, Mount] = {}
    for line in Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines():
        mount = Mount(line)
        last.pop(mount.path, None)  # a later mount at the same path hides the earlier one
        last[mount.path] = mount
    return sorted(last.values(), key=lambda mount: (mount.path != "/", mount.path.count("/"), mount.path))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def enter_namespaces(*, own_user: bool) -> None:
    """Enters a new mount namespace. With `own_user` it is in a new user namespace, in which the user and group ids stay
    the same."""
    _unshare(CLONE_NEWNS, own_user=own_user)
    _check(_libc().mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None), "make mounts private")


def enter_network(*, own_user: bool) -> None:
    """Enters a new network namespace, in which no interface is up."""
    _unshare(CLONE_NEWNET, own_user=own_user)


def _unshare(flags: int, *, own_user: bool) -> None:
    uid, gid = os.geteuid(), os.getegid()
    _check(_libc().unshare(flags | (CLONE_NEWUSER if own_user else 0)), "unshare")
    if own_user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def fault_in_child(act: Callable[[], None]) -> str:
    """Calls `act` in a child process, which then ends. Returns the text of the exception, or "" if there was none."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            act()
        except BaseException as error:
            os.write(writer, str(error).encode()[:4000] or b"unknown")
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        fault = pipe.read().decode(errors="replace")
    os.waitpid(child, 0)
    return fault


def bind(source: str, target: str) -> None:
    flags = ctypes.c_ulong(_MS_BIND | _MS_REC)
    _check(_libc().mount(os.fsencode(source), os.fsencode(target), None, flags, None), f"bind {target}")


def mount_overlay(lower: str, layer: str, target: str, *, own_user: bool) -> None:
    """Mounts an overlay. `layer` contains the directories u (for written files) and w (for the kernel's own use). Paths
    are passed to the kernel as descriptors and relative names, because no way to escape characters in the kernel's
    option string works in every version."""
    here = os.open(".", os.O_PATH | os.O_DIRECTORY)
    low = os.open(lower, os.O_PATH | os.O_DIRECTORY)
    try:
        os.chdir(layer)
        # Without privileges the kernel can neither use its own attributes nor rename directories of the lower layer.
        extra = "userxattr" if own_user else "redirect_dir=on"
        options = f"lowerdir=/proc/self/fd/{low},upperdir=u,workdir=w,{extra}".encode()
        _check(_libc().mount(b"slipstream", os.fsencode(target), b"overlay", 0, options), f"overlay {target}")
    finally:
        os.fchdir(here)
        os.close(here)
        os.close(low)


def mount_memory(target: str) -> None:
    _check(_libc().mount(b"slipstream", os.fsencode(target), b"tmpfs", 0, None), f"tmpfs {target}")


def change_root(root: str) -> None:
    """Makes `root` the root directory of this process and unmounts the old one."""
    number = _SYS_PIVOT_ROOT.get(os.uname().machine)
    os.chdir(root)
    if number is not None and _libc().syscall(ctypes.c_long(number), b".", b".") == 0:
        _check(_libc().umount2(b".", _MNT_DETACH), "umount the old root")
    else:
        os.chroot(".")
    os.chdir("/")


def drop_capabilities() -> None:
    """Drops the capabilities of the new user namespace. A script must not be able to read what its user cannot read."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    data = (ctypes.c_uint32 * 6)()
    _check(_libc().capset(ctypes.byref(header), ctypes.byref(data)), "capset")


def die_with_parent(signal_number: int) -> None:
    _libc().prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal_number), 0, 0, 0)


def adopt_orphans(*, wanted: bool) -> bool:
    """Makes this process the parent of orphaned descendants, so that it can find and end them. If `wanted` is false,
    orphans get their usual parent again. Returns whether the call succeeded."""
    try:
        return bool(_libc().prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(wanted), 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False
