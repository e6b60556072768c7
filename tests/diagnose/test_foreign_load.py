"""Which steps other programs disturbed."""

from __future__ import annotations

import msgspec
import pytest

from slipstream.diagnose.foreign_load import foreign_cores, is_disturbed, most_foreign
from slipstream.records import LoadSample
from slipstream.testing.made_sessions import made_session

S = 1_000_000_000


@pytest.mark.parametrize(("num_usable", "most"), [(1.0, 0.25), (2.0, 0.25), (2.5, 0.25), (8.0, 0.8), (64.0, 6.4)])
def test_the_load_that_is_too_much(num_usable: float, most: float) -> None:
    assert most_foreign(num_usable) == pytest.approx(most)


@pytest.mark.parametrize(
    ("start_s", "end_s", "cores"),
    [
        (0.0, 1.0, None),  # before the first sample
        (1.2, 1.3, 0.0),
        (2.2, 2.3, 1.2),  # a short step has the load of the sample that contains it
        (1.5, 2.5, 0.6),
        (1.75, 2.25, 0.6),
        (1.0, 3.0, 0.6),
        (1.0, 9.0, 0.6),  # seconds without a sample say nothing
        (3.0, 4.0, None),
    ],
)
def test_the_load_of_a_time_is_that_of_its_samples(start_s: float, end_s: float, cores: float | None) -> None:
    session = msgspec.structs.replace(
        made_session(), foreign_load=[LoadSample(S, 2 * S, 0.0), LoadSample(2 * S, 3 * S, 1.2)]
    )
    seen = foreign_cores(session, round(start_s * S), round(end_s * S))
    assert seen == (None if cores is None else pytest.approx(cores))


def test_steps_beside_another_program_are_disturbed() -> None:
    session = made_session()
    first, last = session.steps[0], session.steps[-1]
    samples = [
        LoadSample(first.start_ns, first.end_ns, 0.2),
        LoadSample(last.start_ns, last.end_ns + 1, 0.3),
    ]
    session = msgspec.structs.replace(session, foreign_load=samples)
    assert session.environment.num_usable == 2.0
    assert [step for step in session.steps if is_disturbed(session, step)] == [last]
