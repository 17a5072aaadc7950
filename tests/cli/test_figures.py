import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedw_cli import figures


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00:00"), (0.2, "0:00:01"), (59.5, "0:01:00"), (3599, "0:59:59"), (90_000, "25:00:00")],
)
def test_duration_is_hours_minutes_seconds_rounded_up(seconds: float, text: str) -> None:
    assert figures.duration(seconds) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_234_567, "1.2 MB"), (10**19, "10000.0 PB")],
)
def test_size_takes_the_largest_unit_below_it(nbytes: int, text: str) -> None:
    assert figures.size(nbytes) == text


@given(st.integers(0, 10**15))
def test_size_always_has_a_unit_and_stays_within_a_twentieth(nbytes: int) -> None:
    amount, unit = figures.size(nbytes).split(" ")
    factor = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}[unit]
    assert abs(float(amount) * factor - nbytes) <= 0.05 * max(nbytes, 1)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(120, "0.1 s ago"), (31_000, "31 s ago"), (180_000, "3 min ago"), (10_800_000, "3 h ago")],
)
def test_ago_takes_the_unit_that_people_would(ms: int, text: str) -> None:
    assert figures.ago(ms) == text


def test_unknown_figures_are_never_shown_as_zero() -> None:
    assert figures.rate(None) == "unknown"
    assert figures.millis(None) == "unknown"
    assert figures.percent(None) == "-"
    assert figures.loss(None) == "-"


@pytest.mark.parametrize(
    ("mbit", "text"), [(4.25, "4.2 Mbit/s"), (46, "46 Mbit/s"), (2500, "2.5 Gbit/s")]
)
def test_rate_has_two_significant_digits_or_more(mbit: float, text: str) -> None:
    assert figures.rate(mbit) == text
