from pathlib import Path

import pytest

from slipstream.machine.cgroups import parse_mounts
from slipstream.machine.disk import find_mount, read_disk_kind


def machine(root: Path, mountinfo: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(mountinfo)
    for name in ("sys/dev/block", "sys/class/block", "sys/block"):
        (root / name).mkdir(parents=True)
    return root


def disk(root: Path, name: str, number: str, rotational: str, partition: str = "") -> Path:
    device = root / "sys/devices" / name
    (device / "queue").mkdir(parents=True)
    (device / "queue/rotational").write_text(f"{rotational}\n")
    (root / "sys/block" / name).symlink_to(device)
    target = device
    if partition:
        target = device / partition
        target.mkdir()
        (target / "partition").write_text("1\n")
    (root / "sys/dev/block" / number).symlink_to(target)
    (root / "sys/class/block" / target.name).symlink_to(target)
    return device


@pytest.mark.parametrize(("rotational", "kind"), [("0", "ssd"), ("1", "hdd")])
def test_partition_has_the_kind_of_its_disk(tmp_path: Path, rotational: str, kind: str) -> None:
    root = machine(tmp_path, "27 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    disk(root, "sda", "8:1", rotational, partition="sda1")
    assert read_disk_kind(Path("/home/me"), root) == kind


def test_device_mapper_has_the_kind_of_its_disks(tmp_path: Path) -> None:
    root = machine(tmp_path, "27 1 253:0 / / rw - xfs /dev/mapper/vg-root rw\n")
    below = disk(root, "nvme0n1", "259:0", "0")
    mapper = disk(root, "dm-0", "253:0", "1")
    (mapper / "slaves").mkdir()
    (mapper / "slaves/nvme0n1").symlink_to(below)
    assert read_disk_kind(Path("/"), root) == "ssd"


def test_btrfs_is_found_by_its_source(tmp_path: Path) -> None:
    root = machine(tmp_path, "27 1 0:25 /@ / rw - btrfs /dev/sda2 rw\n")
    disk(root, "sda", "8:2", "1", partition="sda2")
    assert read_disk_kind(Path("/"), root) == "hdd"


def test_overlay_has_the_kind_of_its_upper_directory_or_of_all_disks(tmp_path: Path) -> None:
    text = "1 0 0:50 / / rw - overlay overlay rw,lowerdir=/a,upperdir=/data/up,workdir=/w\n"
    root = machine(tmp_path, text + "2 1 8:0 / /data rw - ext4 /dev/sda rw\n")
    disk(root, "sda", "8:0", "1")
    assert read_disk_kind(Path("/work"), root) == "hdd"  # upper directory not visible: the only disk decides
    disk(root, "nvme0n1", "259:0", "0")
    assert read_disk_kind(Path("/work"), root) == "unknown"
    (root / "data/up").mkdir(parents=True)
    assert read_disk_kind(Path("/work"), root) == "hdd"


def test_network_memory_and_virtual_disks(tmp_path: Path) -> None:
    text = (
        "1 0 254:0 / / rw - ext4 /dev/vda rw\n"
        "2 1 0:40 / /data rw - nfs4 server:/data rw\n"
        "3 1 0:41 / /dev/shm rw - tmpfs tmpfs rw\n"
        "4 1 0:42 / /bucket rw - fuse.gcsfuse bucket rw\n"
    )
    root = machine(tmp_path, text)
    disk(root, "vda", "254:0", "1")
    kinds = {path: read_disk_kind(Path(path), root) for path in ("/data/x", "/dev/shm/x", "/bucket", "/home")}
    assert kinds == {"/data/x": "network", "/dev/shm/x": "memory", "/bucket": "network", "/home": "unknown"}


def test_the_longest_and_latest_mount_wins() -> None:
    mounts = parse_mounts("1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 / /da rw - ext4 b rw\n3 1 8:3 / /data rw - ext4 c rw\n")
    assert (found := find_mount(mounts, "/data/sets")) and found.source == "c"
    assert (found := find_mount(mounts, "/database")) and found.source == "a"
    again = mounts + parse_mounts("4 1 8:4 / /data rw - ext4 d rw\n")
    assert (found := find_mount(again, "/data")) and found.source == "d"


def test_no_linux(tmp_path: Path) -> None:
    assert read_disk_kind(Path("/"), tmp_path) == "unknown"
