import random

import pytest

from greedw_p2p.ids import Incarnation, NodeId
from greedw_p2p.limits import KIB, MIB
from greedw_p2p.links.cell import CODE_UNKNOWN, LinkCell
from greedw_p2p.links.estimate import RTT_SAMPLES_MIN, RTT_WINDOW_US, LinkEstimator
from greedw_p2p.links.scale import code_of_cost, code_of_latency, cost_ns_per_mib, latency_us

ME, PEER, OTHER = (NodeId(f"{number:032x}") for number in range(3))


def _estimator() -> LinkEstimator:
    return LinkEstimator(ME, Incarnation(4))


def _only(estimator: LinkEstimator) -> LinkCell:
    (cell,) = estimator.cells()
    return cell


def _add_rate(
    estimator: LinkEstimator, mib_per_s: float, nbytes: int = MIB, *, at_least: bool = False
) -> int:
    elapsed_us = round(nbytes / MIB / mib_per_s * 1e6)
    estimator.add_transfer(PEER, nbytes, elapsed_us, 0, at_least=at_least)
    return _only(estimator).cost


def _code(mib_per_s: float) -> int:
    return code_of_cost(round(1e9 / mib_per_s))


def test_nothing_is_published_before_anything_is_measured() -> None:
    assert _estimator().cells() == ()


def test_the_published_latency_is_half_the_least_round_trip() -> None:
    estimator = _estimator()
    for rtt_us in (9_000, 2_000, 40_000, 2_500):
        estimator.add_rtt(PEER, rtt_us, 0)
    cell = _only(estimator)
    assert (cell.writer, cell.peer, cell.incarnation) == (ME, PEER, 4)
    assert cell.latency == code_of_latency(1_000)
    assert cell.cost == CODE_UNKNOWN


def test_a_latency_is_not_published_from_too_few_round_trips() -> None:
    estimator = _estimator()
    for count in range(RTT_SAMPLES_MIN):
        assert estimator.cells() == ()
        estimator.add_rtt(PEER, 1_000 + count, count)
    assert _only(estimator).latency == code_of_latency(500)


def test_a_latency_that_has_risen_is_published_after_two_windows() -> None:
    estimator = _estimator()
    for now_us in range(0, RTT_WINDOW_US, 1_000_000):
        estimator.add_rtt(PEER, 1_000, now_us)
    for now_us in range(RTT_WINDOW_US, 2 * RTT_WINDOW_US, 1_000_000):
        estimator.add_rtt(PEER, 30_000, now_us)
        assert _only(estimator).latency == code_of_latency(500)
    estimator.add_rtt(PEER, 30_000, 2 * RTT_WINDOW_US)
    assert latency_us(_only(estimator).latency) == pytest.approx(15_000, rel=0.05)


def test_a_latency_moves_only_for_a_change_of_four_tenths() -> None:
    estimator = _estimator()
    for rtt_us in [1_000] * RTT_SAMPLES_MIN + [730]:
        estimator.add_rtt(PEER, rtt_us, 0)
        estimator.cells()
    assert _only(estimator).latency == code_of_latency(500)
    estimator.add_rtt(PEER, 690, 0)
    assert _only(estimator).latency == code_of_latency(345)


def test_a_firm_rate_is_published_within_half_a_step() -> None:
    estimator = _estimator()
    assert _add_rate(estimator, 6.0) == _code(6.0)
    assert cost_ns_per_mib(_only(estimator).cost) == pytest.approx(1e9 / 6, rel=0.045)


def test_noise_within_ten_percent_does_not_change_what_is_published() -> None:
    rng = random.Random(1)  # noqa: S311 - seeded, not secret
    estimator = _estimator()
    for _ in range(4):
        _add_rate(estimator, 24.0)
    for _ in range(RTT_SAMPLES_MIN):
        estimator.add_rtt(PEER, 1_000, 0)
    before = _only(estimator)
    for now_us in range(0, 200 * RTT_WINDOW_US, RTT_WINDOW_US):
        _add_rate(estimator, 24.0 * rng.uniform(0.9, 1.1))
        estimator.add_rtt(PEER, rng.randrange(1_000, 1_100), now_us)
        assert _only(estimator) == before


def test_versions_rise_only_when_a_code_moves_and_never_fall() -> None:
    rng = random.Random(2)  # noqa: S311 - seeded, not secret
    estimator = _estimator()
    seen: dict[NodeId, LinkCell] = {}
    for step in range(400):
        peer = rng.choice((PEER, OTHER))
        estimator.add_transfer(peer, MIB, rng.randrange(6_000, 300_000), step)
        for cell in estimator.cells():
            before = seen.get(cell.peer)
            if before is not None and cell != before:
                assert cell.version > before.version
                assert (cell.latency, cell.cost) != (before.latency, before.cost)
            seen[cell.peer] = cell


def test_one_stalled_sample_among_the_first_does_not_count() -> None:
    for stalled in range(3):
        estimator = _estimator()
        for sample in range(3):
            _add_rate(estimator, 12.0 if sample == stalled else 24.0)
        assert _only(estimator).cost == _code(24.0)


def test_one_outlier_is_ignored_and_a_second_one_makes_the_estimate_jump() -> None:
    estimator = _estimator()
    for _ in range(4):
        _add_rate(estimator, 24.0)
    assert _add_rate(estimator, 6.0) == _code(24.0)
    assert _add_rate(estimator, 24.0) == _code(24.0)
    assert _add_rate(estimator, 6.0) == _code(24.0)
    assert _add_rate(estimator, 6.0) == _code(6.0)


def test_outliers_on_both_sides_do_not_make_the_estimate_jump() -> None:
    estimator = _estimator()
    for _ in range(4):
        _add_rate(estimator, 24.0)
    for _ in range(6):
        assert _add_rate(estimator, 6.0) == _code(24.0)
        assert _add_rate(estimator, 96.0) == _code(24.0)


def test_a_burst_gives_way_to_a_larger_probe() -> None:
    estimator = _estimator()
    assert _add_rate(estimator, 400.0, 64 * KIB) < _code(100.0)
    assert _add_rate(estimator, 48.0, 256 * KIB) == _code(48.0)


def test_a_short_sample_says_nothing_against_a_firm_value_of_more_bytes() -> None:
    estimator = _estimator()
    for _ in range(3):
        _add_rate(estimator, 48.0, 256 * KIB)
    for _ in range(5):
        assert _add_rate(estimator, 400.0, 64 * KIB) == _code(48.0)


def test_a_link_that_became_faster_is_noticed_by_short_samples_of_the_same_size() -> None:
    estimator = _estimator()
    for _ in range(3):
        _add_rate(estimator, 6.0, 64 * KIB)
    assert _add_rate(estimator, 100.0, 64 * KIB) == _code(6.0)
    assert _add_rate(estimator, 100.0, 64 * KIB) == _code(100.0)


def test_a_passive_sample_only_ever_shows_a_faster_link() -> None:
    estimator = _estimator()
    assert _add_rate(estimator, 5.0, 10 * MIB, at_least=True) == _code(5.0)
    assert _add_rate(estimator, 20.0, 128 * KIB) == _code(20.0)
    for _ in range(9):
        assert _add_rate(estimator, 4.0, 10 * MIB, at_least=True) == _code(20.0)
    for _ in range(2):
        _add_rate(estimator, 40.0, 10 * MIB, at_least=True)
    assert _only(estimator).cost == _code(40.0)


def test_pieces_in_the_same_microsecond_give_the_fastest_code() -> None:
    estimator = _estimator()
    estimator.add_transfer(PEER, 64 * KIB, 0, 0)
    assert _only(estimator).cost == 0


def test_a_forgotten_link_that_comes_back_is_newer_than_before() -> None:
    estimator = _estimator()
    _add_rate(estimator, 24.0)
    before = _only(estimator)
    estimator.forget(PEER)
    assert estimator.cells() == ()
    _add_rate(estimator, 24.0)
    assert _only(estimator).version > before.version
