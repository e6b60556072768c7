"""Finds the kind of disk that holds a directory: ssd, hdd, network, memory or unknown. The kernel's files are read, and
nothing is measured."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from slipstream.machine.cgroups import CgroupMount, parse_mounts

NETWORK = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "wekafs", "9p"),
    *("panfs", "pvfs2", "ocfs2", "virtiofs", "acfs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs"),
    *("fuse.juicefs", "fuse.rclone", "fuse.goofys", "fuse.ceph", "fuse.mount-s3", "fuse.blobfuse2", "davfs", "ncpfs"),
}
MEMORY = {"tmpfs", "ramfs"}
LAYERED = {"overlay", "aufs", "fuse.fuse-overlayfs"}


def read_disk_kind(directory: Path, root: Path = Path("/")) -> str:
    try:
        mounts = parse_mounts((root / "proc/self/mountinfo").read_text(errors="replace"))
    except OSError:
        return "unknown"
    mount = find_mount(mounts, str(directory))
    return _kind_of_mount(mount, mounts, root) if mount else "unknown"


def find_mount(mounts: list[CgroupMount], directory: str) -> CgroupMount | None:
    """Returns the mount that holds the directory. It is the one with the longest mount point. Of several mounts on the
    same point it is the last, which hides the others."""
    found = None
    for mount in mounts:
        inside = PurePosixPath(directory).is_relative_to(mount.point)
        if inside and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def _kind_of_mount(mount: CgroupMount, mounts: list[CgroupMount], root: Path) -> str:
    if mount.kind in NETWORK:
        return "network"
    if mount.kind in MEMORY:
        return "memory"
    if mount.kind in LAYERED:
        return _kind_of_layers(mount, mounts, root)
    by_number = root / "sys/dev/block" / mount.device
    # A file system that spans devices (btrfs) has a device number of its own, but its source still names a device.
    by_name = root / "sys/class/block" / PurePosixPath(mount.source).name
    return _kind_of_device(by_number if by_number.exists() else by_name)


def _kind_of_layers(mount: CgroupMount, mounts: list[CgroupMount], root: Path) -> str:
    """Returns the kind of disk of an overlay's upper directory, which holds new files. A container may not see this
    directory. Then the kind is known only if all disks are of the same kind."""
    for option in mount.options:
        name, _, value = option.partition("=")
        below = find_mount([other for other in mounts if other.kind not in LAYERED], value)
        if name == "upperdir" and below and (root / value.lstrip("/")).exists():
            return _kind_of_mount(below, mounts, root)
    block = root / "sys/block"
    names = [path.name for path in block.iterdir()] if block.is_dir() else []
    disks = [name for name in names if not name.startswith(("loop", "ram", "zram", "sr", "fd", "dm-", "md", "nbd"))]
    return _agreed([_kind_of_device(block / name) for name in disks])


def _kind_of_device(device: Path) -> str:
    if not device.exists():
        return "unknown"
    device = device.resolve()
    if (device / "partition").exists():
        device = device.parent
    below = device / "slaves"
    if below.is_dir() and (slaves := list(below.iterdir())):
        return _agreed([_kind_of_device(slave) for slave in slaves])
    try:
        rotational = (device / "queue/rotational").read_text().strip()
    except OSError:
        return "unknown"
    if rotational == "0":
        return "ssd"
    # Disks of virtual machines report "rotational" for every hardware.
    return "unknown" if device.name.startswith(("vd", "xvd")) else "hdd"


def _agreed(kinds: list[str]) -> str:
    return kinds[0] if kinds and len(set(kinds)) == 1 else "unknown"
