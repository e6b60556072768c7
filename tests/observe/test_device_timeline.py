"""Steps on a device's timeline, of a host that runs ahead, waits for the device, or is too slow for it."""

from __future__ import annotations

import pytest

from slipstream.observe.steps import find_steps
from slipstream.records import Block, Event, EventKind, Step

_KINDS: tuple[EventKind, ...] = ("input", "transfer", "forward", "backward", "optimizer")
_DEVICE_MS = {"transfer": 0.5, "forward": 10.0, "backward": 20.0, "optimizer": 5.0}
_ORIGIN_MS = 5000.0  # of the device's clock


def _steps(host_ms: dict[str, float], blocking: str = "", num: int = 30) -> Step:
    """The middle one of these steps. The device works through what the host launches, in order. `blocking` is a phase
    in which the host waits for the device."""
    events, host, device = [], 0.0, 0.0
    for _ in range(num):
        for kind in _KINDS:
            start, device_start = host, max(device, host)
            host += host_ms[kind]
            work_ms = _DEVICE_MS.get(kind, 0.0)
            # Work is launched at the end of the phase on the host
            device = max(device_start, host) + work_ms
            if kind == blocking:
                host = max(host, device)
            events.append(
                Event(
                    kind,
                    *(0, int(start * 1e6), int(host * 1e6)),
                    device_start_ms=device_start + _ORIGIN_MS,
                    device_end_ms=device + _ORIGIN_MS,
                )
            )
        host += host_ms.get("other", 0.0)
    steps, _ = find_steps(events, [Block(0, "watch", 0, int(host * 1e6))])
    return steps[num // 2]


_FAST = dict.fromkeys(_KINDS, 0.2)


@pytest.mark.parametrize("blocking", ["", "transfer"])
def test_a_blocking_copy_does_not_own_the_work_that_it_waits_for(blocking: str) -> None:
    step = _steps(_FAST, blocking)
    assert step.step_ms == pytest.approx(35.5, abs=1.5)
    assert step.phases["transfer"] < 1.0
    assert step.phases["backward"] == pytest.approx(20, abs=0.5)
    assert step.host_phases is not None
    assert (step.host_phases["transfer"] > 30) == bool(blocking)
    assert sum((step.device_idle or {}).values()) < 1.5


def test_the_wait_for_data_is_the_time_in_which_the_device_has_nothing_to_do() -> None:
    step = _steps(_FAST | {"input": 60.0})
    assert step.phases["input"] == pytest.approx(60 - 34.7, abs=2)
    assert step.device_idle is not None
    assert step.device_idle["input"] == pytest.approx(step.phases["input"])
    assert step.step_ms == pytest.approx(60.8, abs=0.1)


def test_a_slow_host_leaves_the_device_idle() -> None:
    step = _steps(_FAST | {"other": 50.0})
    assert step.device_idle is not None
    assert step.device_idle["other"] > 10


def test_steps_without_times_of_a_device_are_the_hosts() -> None:
    events = [Event(kind, 0, 1_000_000 * at, 1_000_000 * (at + 1)) for at, kind in enumerate(_KINDS * 3)]
    steps, _ = find_steps(events, [])
    assert steps[1].step_ms == 5
    assert steps[1].host_phases is None and steps[1].device_idle is None
