from pathlib import Path

from slipstream.machine.cgroups import CgroupLimits, parse_memberships, parse_mounts, read_limits

V2 = "35 25 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_CPU = "33 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
V1_MEMORY = "34 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def make(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_mountinfo_with_optional_fields_and_blanks() -> None:
    text = "36 35 98:0 /root\\040dir /mnt/a\\040b rw master:1 shared:2 - ext3 /dev/root rw,errors=continue\nbroken\n"
    (mount,) = parse_mounts(text)
    assert (mount.device, mount.root, mount.point, mount.kind, mount.source) == (
        *("98:0", "/root dir", "/mnt/a b"),
        *("ext3", "/dev/root"),
    )
    assert "errors=continue" in mount.options


def test_memberships_of_both_versions() -> None:
    assert parse_memberships("2:cpu,cpuacct:/a\n1:name=systemd:/b\n0::/c:d\n") == {
        "cpu": "/a",
        "cpuacct": "/a",
        "name=systemd": "/b",
        "": "/c:d",
    }


def test_version_2_takes_the_strictest_of_all_ancestors(tmp_path: Path) -> None:
    root = make(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/pod/memory.max": "max\n",
            "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/box/memory.max": "1073741824\n",
        },
    )
    assert read_limits(root) == CgroupLimits(cores=1.5, memory_bytes=1 << 30)


def test_version_1_and_its_value_for_unlimited(tmp_path: Path) -> None:
    root = make(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n",
            "proc/self/mountinfo": V1_CPU + V1_MEMORY,
            "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us": "400000",
            "sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "9223372036854771712",
        },
    )
    assert read_limits(root) == CgroupLimits(cores=4.0, memory_bytes=None)


def test_a_container_that_sees_the_path_of_the_host(tmp_path: Path) -> None:
    mounted = "35 25 0:30 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
    files = {"proc/self/mountinfo": mounted, "sys/fs/cgroup/cpu.max": "200000 100000"}
    root = make(tmp_path, {**files, "proc/self/cgroup": "0::/docker/x\n"})
    assert read_limits(root).cores == 2.0
    # Without a cgroup namespace the group may not be visible. Then the mount point is used.
    make(tmp_path, {"proc/self/cgroup": "0::/../../elsewhere\n"})
    assert read_limits(root).cores == 2.0


def test_no_control_groups(tmp_path: Path) -> None:
    assert read_limits(tmp_path) == CgroupLimits()
