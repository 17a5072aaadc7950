"""What a computation costs before its first sample, from times that a test makes up."""

from collections.abc import Callable

import pytest

from greedw_daemon.worker.calibration import BUDGET_NS, PASSES_MAX, SAMPLES_MAX, fixed_units


def _times(fixed_ns: int, unit_ns: int, sizes: list[int]) -> Callable[[int], int]:
    """Return a clock of computations that cost exactly this, and note what is asked."""

    def time_of(count: int) -> int:
        sizes.append(count)
        return fixed_ns + count * unit_ns

    return time_of


@pytest.mark.parametrize(("fixed_ns", "units"), [(0, 0), (6_000, 1), (150_000, 25), (600_000, 100)])
def test_fixed_cost_is_found_in_units_of_a_sample(fixed_ns: int, units: float) -> None:
    assert fixed_units(_times(fixed_ns, 6_000, []), 256) == pytest.approx(units, abs=1e-6)


def test_delays_of_all_but_one_pass_change_nothing() -> None:
    passes: dict[int, int] = {}

    def time_of(count: int) -> int:
        passes[count] = passes.get(count, 0) + 1
        delay = 0 if passes[count] == count % PASSES_MAX + 1 else 5_000_000
        return 150_000 + count * 6_000 + delay

    assert fixed_units(time_of, 256) == pytest.approx(25)


def test_no_more_samples_are_timed_than_a_round_has() -> None:
    for samples in (16, 100, 10**6):
        sizes: list[int] = []
        fixed_units(_times(1_000, 10, sizes), samples)
        assert max(sizes) == min(samples, SAMPLES_MAX)
        assert min(sizes) > 1
        assert len(sizes) == 4 * PASSES_MAX


def test_too_small_a_round_counts_as_without_fixed_cost() -> None:
    for samples in (1, 2, 3):
        sizes: list[int] = []
        assert fixed_units(_times(1_000_000, 10, sizes), samples) == 0
        assert sizes == []


def test_slow_computations_are_timed_twice_only() -> None:
    sizes: list[int] = []
    assert fixed_units(_times(0, BUDGET_NS, sizes), 256) == 0
    assert sizes == [16, 32]


def test_fixed_cost_is_bounded_where_more_samples_cost_nothing() -> None:
    assert fixed_units(_times(1_000_000, 0, []), 256) == SAMPLES_MAX
    assert fixed_units(_times(1_000_000, 1, []), 64) == 64


def test_times_that_grow_faster_than_the_samples_have_no_negative_fixed_cost() -> None:
    assert fixed_units(lambda count: count * count, 256) == 0
