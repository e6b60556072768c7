"""Gives a trial its own network, in which only the loopback interface exists. Uploads and downloads of the script then
fail, as on a computer without a connection. For Linux only."""

from __future__ import annotations

import os
import socket
import struct
import sys
from typing import Final

from slipstream.sandbox import mounts

_SET_FLAGS: Final = 0x8914  # SIOCSIFFLAGS
_UP_AND_RUNNING: Final = 0x41


def obstacle() -> str:
    """Returns the reason why this system does not allow a network without a connection, or "" if it does. Tries it in a
    child process."""
    if sys.platform != "linux":
        return "only Linux has network namespaces"
    return mounts.fault_in_child(enter)


def enter() -> None:
    """Moves this process, which must have a single thread, to the new network. Raises OSError if that is not
    allowed."""
    is_root = os.geteuid() == 0
    if is_root:
        try:
            mounts.enter_network(own_user=False)
        except OSError:  # root in a container may not have the right to do this
            mounts.enter_network(own_user=True)
    else:
        mounts.enter_network(own_user=True)
    _start_loopback()
    if not is_root:
        mounts.drop_capabilities()


def _start_loopback() -> None:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sh22x", b"lo", _UP_AND_RUNNING))
