"""Messages over the baton's socket arrive complete and in order, even if they are split. Long addresses work."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from slipstream.records import Sketch, Snapshot
from slipstream.wire.protocol import Go, Joined, Report, Tell, Wire, connect, listen


def test_a_message_arrives_as_it_was_sent_and_a_closed_end_is_none() -> None:
    left, right = (Wire(end) for end in socket.socketpair())
    report = Report([(0, 1.5)], [Snapshot(0, [Sketch("w", 2, 1.0, [0.5, float("nan")], 1)])], [(1, "ab")])
    for message in (Joined(7), Go(3, 1)):
        assert left.send(message)
    assert left.send(report)
    assert [right.receive(1.0), right.receive(1.0)] == [Joined(7), Go(3, 1)]
    assert repr(right.receive(1.0)) == repr(report)
    with pytest.raises(TimeoutError):
        right.receive(0.01)
    left.close()
    assert right.receive(1.0) is None
    assert not right.send(Tell())
    right.close()


def test_a_message_that_arrives_in_pieces() -> None:
    near, far = socket.socketpair()
    sender, receiver = socket.socketpair()
    Wire(sender).send(Go(5, 2))
    for byte in receiver.recv(100):
        near.send(bytes([byte]))
    assert Wire(far).receive(1.0) == Go(5, 2)
    for end in (near, far, sender, receiver):
        end.close()


def test_a_path_longer_than_a_socket_address_may_be(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30) / ("longer" * 20)
    folder.mkdir(parents=True)
    listener = listen(folder / "baton")
    wire = connect(folder / "baton")
    assert wire is not None
    wire.close()
    listener.close()
    assert connect(folder / "baton") is None
