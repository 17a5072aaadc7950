import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedw_cli.pace import Pace


def test_pace_is_unknown_before_two_looks_differ() -> None:
    pace = Pace()
    pace.look(5, 0.0)
    pace.look(5, 1.0)
    assert pace.seconds_left(10) is None
    assert pace.round_ms_median() is None


def test_time_left_follows_the_present_pace_and_not_the_whole_past() -> None:
    pace = Pace()
    for second in range(100):
        pace.look(second, float(second))
    for second in range(100, 130):
        pace.look(100 + 10 * (second - 99), float(second))
    assert pace.seconds_left(100) == pytest.approx(10, rel=0.05)


def test_pause_counts_neither_as_pace_nor_as_a_round() -> None:
    pace = Pace()
    pace.look(0, 0.0)
    pace.look(10, 1.0)
    pace.pause()
    pace.look(10, 101.0)
    pace.look(20, 102.0)
    assert pace.rounds_per_second() == pytest.approx(10)
    assert pace.round_ms_median() == pytest.approx(100)


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0.01, 5)), min_size=1, max_size=50))
def test_median_lies_between_the_fastest_and_the_slowest_look(
    steps: list[tuple[int, float]],
) -> None:
    pace, done, now_s = Pace(), 0, 0.0
    pace.look(0, 0.0)
    for rounds, seconds in steps:
        done, now_s = done + rounds, now_s + seconds
        pace.look(done, now_s)
    median = pace.round_ms_median()
    if done == 0:
        assert median is None
    else:
        assert median is not None
        assert 0 < median <= 1000 * now_s + 1e-6
        assert median >= 1000 * 0.01 / 50 - 1e-6
