"""What a results page rests on: rows that are measured once, and intervals of shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import rows

    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    return rows


def test_a_row_is_measured_once_until_its_sources_change(rows: Any, tmp_path: Path) -> None:
    search = tmp_path / "search"
    search.mkdir()
    (search / "rule.py").write_text("old")
    counted: list[int] = []

    def measure() -> dict[str, int]:
        counted.append(1)
        return {"value": len(counted)}

    page = rows.Rows("page", [search])
    assert page.measure("first", measure)["value"] == 1
    assert page.measure("first", measure)["value"] == 1
    again = rows.Rows("page", [search])
    assert again.measure("first", measure)["value"] == 1, "an interrupted benchmark does not repeat its rows"
    assert again.measure("first", measure, settings="longer")["value"] == 2
    again.extend("first", worth=3)
    (search / "rule.py").write_text("new")
    stored = rows.Rows("page", [search]).stored(["first", "second"])
    assert list(stored) == ["first"] and stored["first"]["worth"] == 3, "the page shows rows of older code too"
    changed = rows.Rows("page", [search]).measure("first", measure, settings="longer")
    assert changed["value"] == 3 and "worth" not in changed


def test_a_measurement_that_is_interrupted_leaves_no_row(rows: Any, tmp_path: Path) -> None:
    def measure() -> dict[str, int]:
        raise KeyboardInterrupt

    page = rows.Rows("page", [])
    with pytest.raises(KeyboardInterrupt):
        page.measure("first", measure)
    assert not page.stored(["first"]) and not (tmp_path / "page.json").exists()


def test_intervals_of_shares_and_medians(rows: Any) -> None:
    import intervals

    half, none = intervals.binomial_interval(5, 10), intervals.binomial_interval(0, 20)
    assert (half.low, half.high) == (pytest.approx(0.1871, abs=1e-4), pytest.approx(0.8129, abs=1e-4))
    assert (none.middle, none.low, none.high) == (0.0, 0.0, pytest.approx(0.1684, abs=1e-4))
    assert intervals.binomial_interval(20, 20).high == 1.0
    middle = intervals.median_interval([float(value) for value in range(1, 25)])
    assert (middle.middle, middle.low, middle.high) == (12.5, 7.0, 18.0), "of 24 values, the 7th and the 18th"
    mean = intervals.mean_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert mean.high - mean.middle == pytest.approx(1.963, abs=1e-3)
