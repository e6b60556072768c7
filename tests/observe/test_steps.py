"""Finds steps in generated events that represent the kinds of training loops in real scripts."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.observe.steps import find_steps
from slipstream.records import Block, Evaluation, Event, EventKind, Step

MS = 1_000_000


class Script:
    """Generates the events that a script would cause."""

    def __init__(self) -> None:
        self.now = 0
        self.events: list[Event] = []

    def wait(self, ms: float) -> None:
        self.now += int(ms * MS)

    def do(self, kind: EventKind, ms: float, ident: int = 0, **facts: Any) -> None:
        start = self.now
        self.wait(ms)
        self.events.append(Event(kind, ident, start, self.now, **facts))

    def batch(self, ms: float = 4, ident: int = 0, samples: int = 32) -> None:
        self.do("input", ms, ident, samples=samples)

    def forward(self, ms: float = 3, ident: int = 0, training: bool = True, grad: bool = True) -> None:
        self.do("forward", ms, ident, samples=32, training=training, grad=grad)

    def learn(self) -> None:
        self.forward()
        self.wait(1)
        self.do("backward", 6)

    def steps(self) -> tuple[list[Step], list[Evaluation]]:
        block = Block(0, "watch", 0, self.now)
        steps, evaluations = find_steps(self.events, [block])
        for step in steps:
            assert abs(sum(step.phases.values()) - step.step_ms) < 1e-6
        return steps, evaluations


def test_plain_loop() -> None:
    script = Script()
    for _ in range(5):
        script.batch()
        script.learn()
        script.do("optimizer", 2)
        script.wait(1)
    steps, evaluations = script.steps()
    assert len(steps) == 5 and not evaluations
    assert steps[1].phases == {"input": 4, "forward": 3, "backward": 6, "optimizer": 2, "other": 2}
    assert steps[1].samples == 32 and steps[1].num_batches == 1


def test_loader_that_fetches_one_batch_ahead() -> None:
    script = Script()
    script.batch()
    for _ in range(5):
        script.batch()
        script.learn()
        script.do("optimizer", 2)
    steps, _ = script.steps()
    assert len(steps) == 5
    assert [step.step_ms for step in steps[1:]] == [16, 16, 16, 16]


def test_trainer_that_takes_all_micro_batches_at_once() -> None:
    script = Script()
    for _ in range(4):
        for _ in range(3):
            script.batch()
        for _ in range(3):
            script.learn()
        script.do("optimizer", 2)
    steps, _ = script.steps()
    assert [step.num_batches for step in steps] == [3, 3, 3, 3]
    assert [step.samples for step in steps] == [96] * 4


def test_accumulation_that_changes() -> None:
    script = Script()
    for micro in (1, 2, 4):
        for _ in range(micro):
            script.batch()
            script.learn()
        script.do("optimizer", 2)
    steps, _ = script.steps()
    assert [step.num_backwards for step in steps] == [1, 2, 4]


def test_two_optimizers_at_different_rates() -> None:
    script = Script()
    for _ in range(4):
        for _ in range(5):
            script.batch()
            script.learn()
            script.do("optimizer", 1, ident=0)  # the critic
        script.forward(ident=1)
        script.do("backward", 6)
        script.do("optimizer", 2, ident=1)
    steps, _ = script.steps()
    assert len(steps) == 4
    assert [step.num_updates for step in steps] == [6] * 4


def test_alternating_optimizers_share_a_step() -> None:
    script = Script()
    for _ in range(6):
        script.batch()
        script.learn()
        script.do("optimizer", 1, ident=0)
        script.learn()
        script.do("optimizer", 1, ident=1)
    steps, _ = script.steps()
    assert len(steps) == 6
    assert all(step.num_batches == 1 and step.num_updates == 2 for step in steps)


def test_two_trainings_one_after_the_other() -> None:
    script = Script()
    for ident in (0, 1):
        for _ in range(5):
            script.batch()
            script.learn()
            script.do("optimizer", 1, ident=ident)
    assert len(script.steps()[0]) == 10


def test_closure_with_many_passes() -> None:
    script = Script()
    for _ in range(3):
        script.batch()
        start = script.now
        for _ in range(4):
            script.learn()
        script.wait(1)
        script.events.append(Event("optimizer", 0, start, script.now))
    steps, _ = script.steps()
    assert len(steps) == 3
    # The time of a closure before a backward pass belongs to the script, although it runs inside optimizer.step
    assert steps[0].phases == {"other": 4, "input": 4, "forward": 12, "backward": 24, "optimizer": 1}


def test_a_trainer_that_trains_inside_the_optimizers_step() -> None:
    """In Lightning, training_step runs in a closure. Its work outside the model does not belong to the optimizer."""
    script = Script()
    for _ in range(4):
        script.batch()
        start = script.now
        script.wait(2)  # hooks
        script.forward()
        script.wait(7)  # metrics, value by value
        script.do("backward", 6)
        script.wait(1)  # the update itself
        script.events.append(Event("optimizer", 0, start, script.now))
    steps, _ = script.steps()
    assert steps[0].phases == {"other": 9, "input": 4, "forward": 3, "backward": 6, "optimizer": 1}


def test_full_batch_closure_without_a_loader() -> None:
    script = Script()
    for _ in range(4):
        start = script.now
        script.learn()
        script.events.append(Event("optimizer", 0, start, script.now))
        script.wait(2)
    steps, _ = script.steps()
    assert len(steps) == 4
    assert steps[0].phases["other"] == 1 + 2


def test_weights_updated_by_hand() -> None:
    script = Script()
    for _ in range(4):
        script.batch()
        script.learn()
        script.wait(3)
    steps, _ = script.steps()
    assert len(steps) == 4
    assert steps[0].phases["other"] == 4


def test_inference_only() -> None:
    script = Script()
    for _ in range(4):
        script.batch()
        script.forward(training=False, grad=False)
        script.forward(ident=1, training=False, grad=False)
        script.wait(1)
    steps, evaluations = script.steps()
    assert len(steps) == 4 and not evaluations
    assert steps[0].phases == {"input": 4, "forward": 6, "other": 1}


def _train(script: Script, num: int) -> None:
    for _ in range(num):
        script.batch()
        script.learn()
        script.do("optimizer", 2)


def test_validation_is_excluded_from_steps() -> None:
    script = Script()
    script.do("iterator", 1)
    _train(script, 4)
    script.do("iterator", 5, ident=1)
    for _ in range(3):
        script.batch(ident=1)
        script.forward(training=False, grad=False)
    script.wait(2)
    _train(script, 4)
    steps, evaluations = script.steps()
    assert len(steps) == 8
    assert [step.step_ms for step in steps[1:]] == [16] * 7
    (evaluation,) = evaluations
    assert evaluation.num_batches == 3 and not evaluation.grad
    assert evaluation.end_ns - evaluation.start_ns == (5 + 3 * 7 + 2) * MS
    assert steps[3].apart_ms == 28


def test_validation_with_gradients_and_a_prefetching_loader() -> None:
    script = Script()
    script.batch()
    for _ in range(4):
        script.batch()
        script.learn()
        script.do("optimizer", 2)
    for _ in range(6):
        script.batch(ident=1)
        script.forward(training=False, grad=True)
    for _ in range(4):
        script.batch()
        script.learn()
        script.do("optimizer", 2)
    steps, evaluations = script.steps()
    assert len(steps) == 8
    assert len(evaluations) == 1 and evaluations[0].grad and evaluations[0].num_batches == 6


def _train_by_a_loss_module(script: Script) -> None:
    for _ in range(5):
        script.batch()
        script.forward()
        script.forward(1, ident=9)
        script.do("backward", 6)
        script.do("optimizer", 2)


def test_loss_module_in_validation_with_gradients_is_not_training() -> None:
    """nn.MSELoss() is called in validation as in training. With gradients enabled its calls look like training."""
    for grad in (True, False):
        script = Script()
        for _ in range(3):
            _train_by_a_loss_module(script)
            for _ in range(4):
                script.batch(ident=1)
                script.forward(training=False, grad=grad)
                script.forward(1, ident=9, grad=grad)
        steps, evaluations = script.steps()
        assert len(steps) == 15
        assert [(one.after_step, one.num_batches, one.grad) for one in evaluations] == [
            (4, 4, grad),
            (9, 4, grad),
            (14, 4, grad),
        ]


def test_validation_of_one_batch_with_a_loss_module_is_not_training() -> None:
    script = Script()
    for _ in range(3):
        _train_by_a_loss_module(script)
        script.batch(ident=1)
        script.forward(training=False, grad=False)
        script.forward(1, ident=9, grad=False)
    steps, evaluations = script.steps()
    assert [step.num_batches for step in steps] == [1] * 15
    assert [one.after_step for one in evaluations] == [4, 9, 14]


@pytest.mark.parametrize("has_loss_module", [False, True])
def test_training_in_evaluation_mode_after_a_validation(has_loss_module: bool) -> None:
    script = Script()

    def criterion() -> None:
        if has_loss_module:
            script.forward(0, ident=9)

    _train(script, 4)
    for _ in range(2):
        for _ in range(3):
            script.batch(ident=1)
            script.forward(training=False, grad=True)
            criterion()
        for _ in range(4):
            script.batch()
            script.forward(training=False)
            criterion()
            script.do("backward", 6)
            script.do("optimizer", 2)
    steps, evaluations = script.steps()
    assert [step.phases["forward"] for step in steps] == [3] * 12
    assert [step.num_batches for step in steps] == [1] * 12
    assert [evaluation.num_batches for evaluation in evaluations] == [3, 3]


def test_accuracy_on_the_training_loader_itself_is_evaluation() -> None:
    script = Script()
    for _ in range(3):
        script.do("iterator", 1)
        for _ in range(4):
            script.batch()
            script.forward()
            script.forward(1, ident=9)
            script.do("backward", 6)
            script.do("optimizer", 2)
        for ident, num in ((0, 4), (1, 2)):
            script.do("iterator", 1, ident=ident)
            for _ in range(num):
                script.batch(ident=ident)
                script.forward(training=False, grad=False)
                script.forward(1, ident=9, grad=False)  # a loss module, which does not switch modes
    steps, evaluations = script.steps()
    assert [step.num_batches for step in steps] == [1] * 12
    assert [step.is_first_of_epoch for step in steps] == [True, False, False, False] * 3
    assert [step.phases["input"] for step in steps] == [5, 4, 4, 4] * 3
    assert sum(evaluation.num_batches for evaluation in evaluations) == 18


def test_batch_requested_before_a_validation_stays_a_training_batch() -> None:
    script = Script()
    for _ in range(6):
        script.batch()
        script.batch(ident=1)
        script.forward(training=False, grad=False)
        script.learn()
        script.do("optimizer", 2)
    for _ in range(20):  # most of the validation batches
        script.batch(ident=1)
        script.forward(training=False, grad=False)
    steps, _ = script.steps()
    assert [step.num_batches for step in steps] == [1] * 6


def test_a_sanity_check_of_two_batches_comes_before_training() -> None:
    script = Script()
    script.do("transfer", 2)  # the model's
    for _ in range(2):
        script.batch(ident=1)
        script.forward(training=False, grad=False)
    _train(script, 6)
    steps, (sanity,) = script.steps()
    assert len(steps) == 6
    assert (sanity.after_step, sanity.num_batches, sanity.loader) == (-1, 2, 1)
    assert all(step.num_batches == 1 and step.samples == 32 for step in steps)


def test_batches_that_the_model_labels_and_then_trains_on() -> None:
    script = Script()
    for _ in range(4):
        script.batch(ident=0)
        script.batch(ident=1)
        script.forward(training=False, grad=False)
        script.learn()
        script.do("optimizer", 2)
    steps, evaluations = script.steps()
    assert [step.num_batches for step in steps] == [2] * 4
    assert all(one.loader == -1 for one in evaluations)


def test_validation_without_a_loader() -> None:
    script = Script()
    for _ in range(3):
        for _ in range(4):
            script.wait(2)  # get_batch
            script.learn()
            script.do("optimizer", 2)
        for _ in range(10):
            script.wait(2)
            script.forward(training=False, grad=False)
    steps, evaluations = script.steps()
    assert len(steps) == 12
    assert [e.num_batches for e in evaluations] == [10, 10, 10]


def test_teacher_model_in_every_step_is_not_evaluation() -> None:
    script = Script()
    for _ in range(4):
        script.batch()
        script.forward(ident=1, training=False, grad=False)
        script.learn()
        script.do("optimizer", 2)
    steps, evaluations = script.steps()
    assert not evaluations
    assert steps[0].num_forwards == 2


def test_replayed_batches_and_drained_loaders_do_not_count_for_steps() -> None:
    script = Script()
    _train(script, 2)
    drain_start = script.now
    script.wait(100)
    drain = Block(1, "drain", drain_start, script.now)
    for _ in range(3):
        script.do("input", 9, samples=32, kept=True)
        script.learn()
        script.do("optimizer", 2)
    blocks = [Block(0, "watch", 0, drain_start), drain, Block(2, "kept", drain.end_ns, script.now)]
    steps, _ = find_steps(script.events, blocks)
    assert [step.step_ms for step in steps] == [16, 16, 12, 12, 12]
    assert [step.block for step in steps] == [0, 0, 2, 2, 2]


def test_no_events_give_no_steps() -> None:
    assert find_steps([], []) == ([], [])


def test_device_step_lasts_until_the_next_step() -> None:
    """Idle time of the device between two steps belongs to the first step. Validation between them belongs to no
    step."""
    script = Script()
    device_ms = 100.0
    for step in range(3):
        script.batch(ms=4)
        for kind, ms in (("forward", 3.0), ("backward", 6.0), ("optimizer", 1.0)):
            marks = {"device_start_ms": device_ms, "device_end_ms": device_ms + ms}
            facts = {"training": True, "grad": True} if kind == "forward" else {}
            script.do(kind, 0.5, **facts, **marks)  # type: ignore[arg-type]
            device_ms += ms
        device_ms += 7.0  # waits for the host
        if step == 1:
            script.batch(ms=1, ident=1)
            marks = {"device_start_ms": device_ms, "device_end_ms": device_ms + 20}
            script.do("forward", 1, training=False, **marks)
            device_ms += 20.0
    steps, evaluations = script.steps()
    assert len(steps) == 3 and len(evaluations) == 1
    for step in steps[:2]:
        phases = {phase: ms for phase, ms in (step.device_phases or {}).items() if ms}
        assert phases == {"forward": 3.0, "backward": 6.0, "optimizer": 1.0, "other": 7.0}
