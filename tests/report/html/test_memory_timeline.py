"""The memory of a step as charts: what is drawn is what was recorded."""

from __future__ import annotations

import msgspec
import pytest

from slipstream.records import KINDS, Footprint, Moment, Session
from slipstream.report.html.memory_owners import MOST_ROWS, holder_charts
from slipstream.report.html.memory_remedies import remedy_charts
from slipstream.report.html.memory_timeline import live_chart, peaks_chart, spans_of
from slipstream.testing.made_sessions import made_footprint, made_session

MOMENTS = (("other", 0.0), ("forward", 1.0), ("other", 2.0), ("forward", 3.0), ("backward", 4.0), ("optimizer", 9.0))


@pytest.fixture
def footprint() -> Footprint:
    return made_footprint(32, 60_000_000)


def session_of(*footprints: Footprint) -> Session:
    return msgspec.structs.replace(made_session(), command="memory", footprints=list(footprints))


def test_phases_last_until_the_next_one_allocates(footprint: Footprint) -> None:
    moments = [Moment(at, phase, [1] * len(KINDS)) for phase, at in MOMENTS]
    spans = spans_of(msgspec.structs.replace(footprint, moments=moments))
    assert [(span.phase, span.start_ms, span.end_ms) for span in spans] == [
        ("other", 0.0, 1.0),
        ("forward", 1.0, 4.0),
        ("backward", 4.0, 9.0),
        ("optimizer", 9.0, 10.0),
    ]


def test_the_legend_is_the_peak(footprint: Footprint) -> None:
    chart = live_chart(session_of(footprint))
    assert chart is not None and chart.table is not None
    assert [(key.name, key.value) for key in chart.keys] == [
        ("parameters", "4 MB 5%"),
        ("optimizer state", "8 MB 11%"),
        ("gradients", "4 MB 5%"),
        ("activations", "60 MB 79%"),
    ]
    assert "peak 76 MB" in chart.picture and "kind-temporary" not in chart.picture
    assert [cell.text for cell in chart.table.rows[2]][:3] == ["3.0 ms", "backward", "76 MB"]


def test_the_highest_point_of_the_areas_is_the_mark(footprint: Footprint) -> None:
    chart = live_chart(session_of(footprint))
    assert chart is not None
    top = chart.picture.split('class="mark-peak"')[1].split('cy="')[1].split('"')[0]
    uppermost = chart.picture.split('class="area kind-activations" d="M')[1].split("z")[0]
    heights = [float(point.split()[1]) for point in uppermost.split("L")]
    assert min(heights) == pytest.approx(float(top), abs=0.1)


def test_nothing_to_draw(footprint: Footprint) -> None:
    assert live_chart(session_of()) is None
    assert live_chart(session_of(msgspec.structs.replace(footprint, moments=footprint.moments[:1]))) is None
    assert holder_charts(session_of()) == [] == remedy_charts(session_of())
    assert peaks_chart(msgspec.structs.replace(footprint, phases={"forward": footprint.kinds})) is None
    hollow = msgspec.structs.replace(footprint, modules=[], lines=[], phases={}, batch_size=0)
    assert holder_charts(session_of(hollow)) == [] == remedy_charts(session_of(hollow))


def test_the_caching_allocator_is_described_if_there_is_one(footprint: Footprint) -> None:
    held = msgspec.structs.replace(footprint, reserved_bytes=100_000_000, split_bytes=7_000_000)
    chart = live_chart(session_of(held))
    assert chart is not None and "100 MB reserved, 7 MB of it free in pieces of split blocks" in chart.caption


def test_many_modules_are_cut_and_all_in_the_table(footprint: Footprint) -> None:
    [module, *_] = footprint.modules
    many = [msgspec.structs.replace(module, path=f"part_{number}") for number in range(MOST_ROWS + 3)]
    [chart, _] = holder_charts(session_of(msgspec.structs.replace(footprint, modules=many)))
    assert f"The first {MOST_ROWS} of {MOST_ROWS + 3}" in chart.caption
    assert chart.table is not None and len(chart.table.rows) == MOST_ROWS + 3


def test_batches_need_two_sizes(footprint: Footprint) -> None:
    charts = remedy_charts(session_of(footprint, made_footprint(16, 30_000_000)))
    assert [chart.ident for chart in charts] == ["remedies", "batches"]
    assert "One more sample takes 1.9 MB" in charts[1].caption and "fits in 1 GB is 524" in charts[1].caption
    assert [chart.ident for chart in remedy_charts(session_of(footprint))] == ["remedies"]
