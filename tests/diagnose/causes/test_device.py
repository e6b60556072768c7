import msgspec

from slipstream.diagnose import diagnose
from slipstream.records import Event, TensorFacts
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
