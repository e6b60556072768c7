import msgspec

from slipstream.diagnose import diagnose
from slipstream.diagnose.input_path import input_path
from slipstream.records import Fetch, Length
from slipstream.testing.made_sessions import LOADER_SITE, made_environment, made_loader, made_session, made_stack

LIGHT = {"forward_ms": 3.0, "backward_ms": 6.0}


def findings(**facts):
    return {finding.cause: finding for finding in diagnose(made_session(**facts)).findings}


def test_no_workers_on_two_cores_promises_what_the_cores_allow():
    found = findings(**LIGHT, input_ms=40)["no_workers"]
    assert found.site == LOADER_SITE
    assert found.change.endswith("shuffle=True, num_workers=2)")
    assert 1.4 < found.predicted_gain < 50.5 / 30.5
    assert "no_workers" not in findings(**LIGHT, input_ms=40, loader=made_loader(num_threads=2))


def test_workers_that_would_start_again_every_few_steps_stay():
    """Three batches of graphs per epoch. Workers that started for each epoch made PyG's example three times slower."""
    facts = {**LIGHT, "input_ms": 40, "length": Length(num_epochs=100)}
    short = findings(**facts, loader=made_loader(num_batches=3))["no_workers"]
    assert short.change.endswith("num_workers=2, persistent_workers=True)")
    long = findings(**facts, loader=made_loader(num_batches=10_000))["no_workers"]
    assert long.change.endswith("num_workers=2)")
    assert short.predicted_gain < long.predicted_gain - 0.1
    trainers = made_loader(num_batches=3, framework="transformers")
    words = "dataloader_num_workers=2, dataloader_persistent_workers=True)"
    assert findings(**facts, loader=trainers)["no_workers"].change.endswith(words)


def test_no_workers_where_the_work_is_waiting():
    found = findings(**LIGHT, input_ms=40, cpu_share=0.05)["no_workers"]
    assert found.predicted_gain > 3
    assert "waiting" in found.evidence


def test_many_cores_make_workers_the_first_answer_to_decoding():
    stacks = [made_stack("decode", 15, 60), made_stack("transform", 16, 40)]
    session = made_session(**LIGHT, input_ms=60, stacks=stacks, environment=made_environment(16.0, 8))
    assert diagnose(session).findings[0].cause == "no_workers"


def test_a_batch_that_costs_less_than_its_hand_over_needs_no_workers():
    assert findings(input_ms=0.4, forward_ms=1.0, backward_ms=1.5, optimizer_ms=0.2, other_ms=0.1) == {}
    assert findings(input_ms=0.8, forward_ms=2.5, backward_ms=4.0, optimizer_ms=0.3, other_ms=0.1) == {}


def test_one_worker_repeats_no_stream_and_more_might():
    stream = made_loader(is_iterable=True)
    assert "as before" in findings(input_ms=20, loader=stream)["no_workers"].advice
    assert "repeats" in findings(**LIGHT, input_ms=40, loader=stream)["no_workers"].advice


def test_a_small_shm_is_named():
    loader = made_loader(tensor_facts=[msgspec.structs.replace(made_loader().tensor_facts[0], num_bytes=40_000_000)])
    machine = msgspec.structs.replace(made_environment(), shm_bytes=64 * 2**20, shm_free_bytes=64 * 2**20)
    found = findings(forward_ms=100.0, backward_ms=200.0, input_ms=400, loader=loader, environment=machine)[
        "no_workers"
    ]
    assert "/dev/shm" in found.advice


def test_too_few_workers():
    found = findings(**LIGHT, input_ms=30, num_workers=1, work_ms=40, cpu_share=0.05)["worker_count"]
    assert "Too few" in found.title
    assert found.predicted_gain > 1.8
    assert found.site == LOADER_SITE


def test_workers_that_rest_are_enough():
    assert findings(num_workers=2, input_ms=0.2, work_ms=20, starved=1.02) == {}


CROWDED = {"forward_ms": 5, "backward_ms": 9, "num_workers": 10, "starved": 2.0, "input_ms": 1}


def test_too_many_workers():
    found = findings(work_ms=36, cpu_share=0.55, **CROWDED)["worker_count"]
    assert "Too many" in found.title
    assert "num_workers=2" in found.change


def test_many_workers_of_whom_one_works_at_a_time_are_not_too_many():
    """If the queue is full, a worker starts when a batch was taken, so 10 workers are no busier during a step than
    2.
    """
    assert "worker_count" not in findings(work_ms=12, **CROWDED)


def restarting(persistent: bool, stacks=()):
    loader = made_loader(2, persistent_workers=persistent, num_batches=10)
    session = made_session(num_workers=2, loader=loader, work_ms=5, input_ms=0.5, stacks=stacks)
    steps = [
        msgspec.structs.replace(step, is_first_of_epoch=True, step_ms=step.step_ms + 150)
        if step.index % 10 == 0
        else step
        for step in session.steps
    ]
    session = diagnose(msgspec.structs.replace(session, steps=steps))
    return {finding.cause: finding for finding in session.findings}


def test_workers_that_start_at_every_epoch():
    found = restarting(False)["worker_restart"]
    assert found.site == LOADER_SITE
    assert "persistent_workers=True" in found.change
    assert 1.3 < found.predicted_gain < (320 + 150) / 320
    assert "worker_restart" not in restarting(True)


def test_what_a_worker_does_before_its_first_batch_is_its_start():
    """A worker_init_fn is not work on a batch."""
    stacks = [
        made_stack("transform", 21, 90, role="worker", phase="start", function="build", expression="index.add(word)"),
        made_stack("transform", 15, 20, role="worker"),
    ]
    assert "mostly at train.py:21" in restarting(False, stacks)["worker_restart"].advice
    session = diagnose(made_session(num_workers=2, work_ms=40, input_ms=30, stacks=stacks))
    assert [stack.line for stack in input_path(session, session.summary).stacks] == [15]


def test_uneven_batches_want_a_deeper_queue():
    session = made_session(num_workers=2, work_ms=30, input_ms=8, cpu_share=0.2)
    fetches = [
        Fetch(one.loader, one.worker, one.start_ns, one.wall_ns * (8 if i % 8 == 0 else 1) // 3, one.cpu_ns // 3, 32)
        for i, one in enumerate(session.fetches)
    ]
    found = {one.cause: one for one in diagnose(msgspec.structs.replace(session, fetches=fetches)).findings}
    assert "prefetch_factor=8" in found["shallow_prefetch"].change
    assert found["shallow_prefetch"].predicted_gain <= 39.5 / 31.5
