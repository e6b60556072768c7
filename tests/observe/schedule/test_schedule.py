"""The schedule of a check on a simulated clock: which blocks there are, in which order, and that it ends."""

from __future__ import annotations

import itertools

import pytest

from slipstream.observe.recorder import Recorder
from slipstream.observe.schedule.check_schedule import CheckSchedule
from slipstream.records import BlockEnded, Loader, Told
from slipstream.seams.patching import Substitute
from slipstream.seams.stop import StopTrial
from slipstream.testing.batches import Batches
from slipstream.testing.fake_clock import FakeClock
from slipstream.wire.spool import MemorySink


def make_loader(num_workers: int) -> Loader:
    return Loader(0, None, "DataLoader", "D", num_workers, 8, 2, False, False, False, 100, 800, "fork")


class MadeSurvey:
    """Records with the number of steps what the schedule asks for. `offers` are the profilers that start."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.has_made_optimizer = False
        self.offers: tuple[str, ...] = ()
        self.endings = iter([True])  # what the ends of the dissections return
        self.told: list[tuple[str, int]] = []

    def has_optimizer(self) -> bool:
        return self.has_made_optimizer

    def at_first_step(self) -> None: ...

    def at_block(self) -> None: ...

    def at_end(self) -> None: ...

    def tell_leaks(self) -> None: ...

    def start_excerpt(self) -> bool:
        return self._start("excerpt")

    def end_excerpt(self) -> None:
        self.told.append(("excerpt ends", self.num_steps))

    def start_dissection(self) -> bool:
        return self._start("probe")

    def end_dissection(self) -> bool:
        self.told.append(("probe ends", self.num_steps))
        return next(self.endings)

    def _start(self, what: str) -> bool:
        if what in self.offers:
            self.told.append((what, self.num_steps))
        return what in self.offers


class MadeTraining:
    """A script that trains with one loader, epoch after epoch."""

    def __init__(
        self,
        step_ms: float,
        epoch: int,
        num_workers: int = 0,
        seconds: float = 10.0,
        steps: int = 0,
        accumulated: int = 1,
    ) -> None:
        self.clock, self.sink = FakeClock(), MemorySink()
        self.recorder = Recorder(self.sink, self.clock)
        self.recorder.meet(make_loader(num_workers))
        self.survey = MadeSurvey()
        self.schedule = CheckSchedule(self.recorder, self.survey, seconds, steps)
        self.recorder.add_listener(self.schedule)
        self.step_ms, self.epoch, self.accumulated = step_ms, epoch, accumulated
        self.num_replayed = 0

    def run(self, with_loader: bool = True) -> list[str]:
        with pytest.raises(StopTrial):
            while True:
                batches = Batches(self.epoch)
                received = 0
                while self._ask(batches) if with_loader else received < self.epoch:
                    received += 1
                    self._train_step()
                assert received == self.epoch  # the number of iterations does not change
        return [m.block.kind for m in self.sink.messages if isinstance(m, BlockEnded)]

    def _ask(self, batches: Batches) -> bool:
        self.recorder.pulse()
        try:
            substitute = self.schedule.supply(batches, 0)
            self.num_replayed += isinstance(substitute, Substitute)
            if not isinstance(substitute, Substitute):
                token = self.recorder.enter("input")
                next(batches)
                self.recorder.leave(token, "input", 0, samples=2)
        except StopIteration:
            return False
        return True

    def _train_step(self) -> None:
        self.recorder.pulse()
        self.survey.num_steps += 1
        passes = (("forward", 0.3), ("backward", 0.6), ("optimizer", 0.1))
        for kind, share in passes if self.survey.num_steps % self.accumulated == 0 else passes[:2]:
            token = self.recorder.enter(kind)
            self.clock.advance(self.step_ms * share)
            facts = {"training": True, "grad": True} if kind == "forward" else {}
            self.recorder.leave(token, kind, 0, **facts)  # type: ignore[arg-type]


def test_two_rounds_of_watch_drain_and_replay() -> None:
    blocks = MadeTraining(step_ms=20, epoch=1000).run()
    assert blocks == ["start", "warmup", "watch", "drain", "kept", "warmup", "watch", "drain", "kept"]


def test_whole_steps_are_replayed() -> None:
    """Seven batches are fewer than a step, and then no step has free data."""
    training = MadeTraining(step_ms=100, epoch=1000, accumulated=7, seconds=20)
    assert training.run().count("kept") == 2
    assert training.num_replayed > 0 and training.num_replayed % 7 == 0


@pytest.mark.parametrize("epoch", [1, 3, 7, 50])
def test_short_epochs_keep_their_length(epoch: int) -> None:
    blocks = MadeTraining(step_ms=20, epoch=epoch, num_workers=2).run()
    assert "watch" in blocks and "kept" in blocks


def test_without_a_loader_there_is_nothing_to_drain() -> None:
    assert MadeTraining(step_ms=20, epoch=1000).run(with_loader=False) == [
        "start",
        "warmup",
        "watch",
        "warmup",
        "watch",
    ]


def test_slow_steps_end_within_the_time_limit() -> None:
    training = MadeTraining(step_ms=4000, epoch=1000, seconds=10)
    training.run()
    assert training.clock.time_ns / 1e9 < 40


def test_requested_number_of_steps_is_watched() -> None:
    training = MadeTraining(step_ms=5, epoch=1000, steps=40)
    training.run()
    assert training.survey.num_steps >= 40


def test_progress_grows_to_the_end() -> None:
    training = MadeTraining(step_ms=20, epoch=1000)
    assert training.schedule.progress().share == 0.0
    training.run()
    assert 0.5 < training.schedule.progress().share <= 1.0


def test_endless_validation_is_stopped() -> None:
    training = MadeTraining(step_ms=20, epoch=1000, seconds=10)
    batches = Batches(1000)
    for _ in range(3):
        training._ask(batches)
        training._train_step()
    with pytest.raises(StopTrial):
        for _ in range(1000):  # batches and forward passes, but no step
            training.recorder.pulse()
            training.clock.advance(100)
    assert training.schedule.is_done
    assert training.clock.time_ns / 1e9 < 17


def test_torch_profile_comes_before_the_dissected_step() -> None:
    training = MadeTraining(20, 100)
    training.survey.offers = ("excerpt", "probe")
    kinds = training.run()
    told = training.survey.told
    assert [what for what, _ in told] == ["excerpt", "excerpt ends", "probe", "probe ends"]
    steps = [step for _, step in told]
    assert [after - before for before, after in itertools.pairwise(steps)] == [3, 1, 1], "a whole step between the two"
    assert kinds[-2:] == ["dissect", "dissect"], "neither is the script as it is"


def test_without_a_profile_only_the_dissection_is_added() -> None:
    one, other = MadeTraining(20, 100), MadeTraining(20, 100)
    other.survey.offers = ("probe",)
    assert [*one.run(), "dissect"] == other.run()
    assert other.survey.num_steps - one.survey.num_steps == 1


def test_steps_of_seconds_leave_time_for_a_dissection() -> None:
    training = MadeTraining(step_ms=5000, epoch=1000, seconds=60)
    training.survey.offers = ("probe",)
    blocks = training.run()
    assert [what for what, _ in training.survey.told] == ["probe", "probe ends"] and blocks[-1] == "dissect"
    assert "kept" in blocks and training.clock.time_ns / 1e9 < 100


def test_interrupted_dissection_is_repeated_after_a_pause() -> None:
    training = MadeTraining(20, 100)
    training.survey.offers = ("probe",)
    training.survey.endings = iter([False, True])
    training.run()
    told = training.survey.told
    assert [what for what, _ in told] == ["probe", "probe ends", "probe", "probe ends"]
    assert told[2][1] - told[1][1] == 1, "one profiler right after another crashes"


def call_without_training(training: MadeTraining, num: int) -> None:
    for _ in range(num):
        training.recorder.pulse()
        token = training.recorder.enter("forward")
        training.clock.advance(training.step_ms)
        training.recorder.leave(token, "forward", 0)


def test_calls_before_the_first_update_are_not_steps_if_there_is_an_optimizer() -> None:
    training = MadeTraining(step_ms=10, epoch=1000)
    training.survey.has_made_optimizer = True
    call_without_training(training, 400)  # a reinforcement learner collects experience for four seconds
    blocks = training.run(with_loader=False)
    assert blocks[:3] == ["start", "warmup", "warmup"]
    ended = [m.block for m in training.sink.messages if isinstance(m, BlockEnded)]
    assert all(block.start_ns > 4e9 for block in ended[2:])
    assert not any(isinstance(m, Told) for m in training.sink.messages)


def test_script_without_backward_passes_is_watched() -> None:
    for has_optimizer in (False, True):
        training = MadeTraining(step_ms=10, epoch=1000)
        training.survey.has_made_optimizer = has_optimizer
        with pytest.raises(StopTrial):
            call_without_training(training, 3000)
        kinds = [m.block.kind for m in training.sink.messages if isinstance(m, BlockEnded)]
        assert "watch" in kinds
        notes = [m.note for m in training.sink.messages if isinstance(m, Told)]
        assert any("--seconds" in note for note in notes) == has_optimizer
