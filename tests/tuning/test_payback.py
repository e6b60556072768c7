from __future__ import annotations

import msgspec

from slipstream.records import Length, Session
from slipstream.tuning.payback import never_pays, one_off_s, payback_steps


def test_starts_that_differ_by_chance_cost_nothing() -> None:
    assert one_off_s(5.3, 5.0) == 0.0
    assert one_off_s(4.0, 5.0) == 0.0
    assert one_off_s(65.0, 5.0) == 60.0


def test_the_number_of_steps_that_recover_a_cost() -> None:
    assert payback_steps(60.0, 0.100, 0.070) == 2000
    assert payback_steps(0.0, 0.100, 0.070) is None
    assert payback_steps(60.0, 0.100, 0.110) is None


def test_a_technique_that_pays_off_only_after_the_end_of_the_training_is_refused(session: Session) -> None:
    short = msgspec.structs.replace(session, length=Length(num_steps=1500))
    assert never_pays(2000, short) == "pays off only after 2,000 steps; this training has 1,500"
    assert never_pays(1000, short) == ""
    assert never_pays(None, short) == ""
    assert never_pays(2000, session) == "", "an unknown length refuses nothing"


def test_epochs_count_in_steps(session: Session) -> None:
    long = msgspec.structs.replace(session, length=Length(num_epochs=2))  # of 1000 batches
    assert never_pays(1999, long) == ""
    assert "2,000" in never_pays(2001, long)
