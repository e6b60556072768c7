"""How long the training takes, in words."""

from __future__ import annotations

import pytest

from slipstream.diagnose import diagnose
from slipstream.records import Length, Site
from slipstream.report.html.figures import figures
from slipstream.report.verdict import outlook
from slipstream.testing.sessions import FILE, made_session

FOLDS = Site(FILE, 90, "for fold, (train, held_out) in enumerate(folds.split(data)):")


@pytest.mark.parametrize(
    ("around", "words", "figure"),
    [
        (None, "14 epochs: ", "the whole training"),
        (FOLDS, "14 epochs at each turn of train.py:90: ", "one turn of the outer loop"),
    ],
)
def test_folds_are_not_taken_for_the_whole(around: Site | None, words: str, figure: str) -> None:
    session = diagnose(made_session(length=Length(num_epochs=14, around=around)))
    assert outlook(session).startswith(words) and outlook(session).endswith("at this rate")
    assert figure in [one.name for one in figures(session)]
