from slipstream.diagnose.hotspots import hottest_line
from slipstream.testing.made_sessions import made_session, made_stack


def test_a_loop_that_jumps_back_at_a_name_shows_its_line():
    stacks = [
        made_stack("transform", 23, 40, expression="acc", in_call=False),
        made_stack("transform", 23, 15, expression="math.exp(-(t - k) / 4)"),
        made_stack("transform", 24, 5, expression="out.append(math.exp(acc) + math.exp(1))"),
    ]
    hot = hottest_line(made_session(stacks=stacks), stacks)
    assert hot is not None
    assert (hot.site.line, hot.count, hot.site.text) == (23, 55, "math.exp(-(t - k) / 4)")


def test_the_line_is_shown_whole_where_only_its_jumps_back_are_asked_for():
    stacks = [
        made_stack("transform", 23, 40, expression="acc", in_call=False),
        made_stack("transform", 23, 15, expression="math.exp(-(t - k) / 4)"),
    ]
    hot = hottest_line(made_session(stacks=stacks), stacks[:1])
    assert hot is not None
    assert (hot.count, hot.site.text) == (40, "math.exp(-(t - k) / 4)")
