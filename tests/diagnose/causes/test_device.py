import msgspec

from slipstream.diagnose import diagnose
from slipstream.diagnose.summary import find_bound
from slipstream.records import Ceilings, Event, TensorFacts
from slipstream.testing.made_sessions import made_environment, made_loader, made_session

GPU = made_environment(8.0, 8, "cuda:0")


def on_gpu(kind, site_index, device_ms, **facts):
    """Every step has one event of this kind, and a device that computes for this long."""
    session = made_session(environment=GPU, **facts)
    events = [Event(kind, site_index, step.start_ns, step.start_ns + 1, num_bytes=1_000_000) for step in session.steps]
    steps = [
        msgspec.structs.replace(
            step, sync_ms=12.0 if kind == "sync" else 0.0, device_phases={"forward": device_ms, "other": 40 - device_ms}
        )
        for step in session.steps
    ]
    session = diagnose(msgspec.structs.replace(session, events=[*session.events, *events], steps=steps))
    return {finding.cause: finding for finding in session.findings}


def test_waiting_for_the_device_at_every_step():
    found = on_gpu("sync", 1, 22.0)["frequent_sync"]
    assert found.site.line == 40
    assert found.predicted_gain == 32 / 22


def idling(idle_ms, kind="sync", **facts):
    """The steps are the device's: 32 ms, of which it is idle for this long between the seams."""
    session = made_session(environment=GPU, **facts)
    events = [Event(kind, 1, step.start_ns, step.start_ns + 1) for step in session.steps]
    steps = [
        msgspec.structs.replace(
            step,
            sync_ms=25.0,
            device_phases=step.phases,
            host_phases={"other": step.step_ms},
            device_idle={"other": idle_ms, "input": 1.0},
        )
        for step in session.steps
    ]
    return diagnose(msgspec.structs.replace(session, events=[*session.events, *events], steps=steps))


def test_a_wait_of_the_host_costs_what_the_device_idles():
    session = idling(8.0)
    (found,) = (finding for finding in session.findings if finding.cause == "frequent_sync")
    step_ms = session.summary.step_ms
    assert found.predicted_gain == step_ms / (step_ms - 8)
    assert "idle for at most 8.0 ms" in found.evidence


def test_a_wait_of_the_host_costs_nothing_while_the_device_computes():
    assert "frequent_sync" not in {finding.cause for finding in idling(0.2).findings}


def test_what_the_device_computes_between_the_seams_is_no_wait():
    phases = {"input": 0.0, "forward": 5.0, "other": 30.0}
    assert find_bound(35.0, phases, Ceilings(), 0, {"other": 30.0}) == "other"
    assert find_bound(35.0, phases, Ceilings(), 0, {"other": 1.0}) == "compute"
    assert find_bound(35.0, phases, Ceilings(), 0) == "other"


def test_a_device_that_is_busy_anyway_loses_nothing():
    assert "frequent_sync" not in on_gpu("sync", 1, 31.5)


def test_pageable_copies_and_floats_that_were_bytes():
    facts = [TensorFacts("[0]", [32, 3, 224, 224], "float32", "cpu", 19_000_000, was_bytes=True)]
    found = on_gpu("transfer", 1, 20.0, transfer_ms=10.0, loader=made_loader(tensor_facts=facts))
    assert "pin_memory=True" in found["pageable_transfer"].change
    assert found["float_transfer"].techniques == ["byte_transfer"]
    assert found["float_transfer"].predicted_gain <= 42 / 32


def test_nothing_of_this_on_a_cpu():
    assert diagnose(made_session(transfer_ms=5.0)).findings == []
