from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from greedw_p2p.limits import MIB
from greedw_p2p.links.cell import CODE_MAX, CODE_UNKNOWN
from greedw_p2p.links.scale import (
    CODES_PER_DOUBLING,
    COST_CODE_DEFAULT,
    COST_NS_PER_MIB_FASTEST,
    LATENCY_CODE_DEFAULT,
    LATENCY_US_SHORTEST,
    code_of_cost,
    code_of_latency,
    cost_ns_per_mib,
    latency_us,
    transfer_cost_ns_per_mib,
)

CODES = range(CODE_MAX + 1)


def test_every_code_survives_the_way_to_its_value_and_back() -> None:
    assert [code_of_cost(cost_ns_per_mib(code)) for code in CODES] == list(CODES)
    assert [code_of_latency(latency_us(code)) for code in CODES] == list(CODES)


def test_values_rise_with_codes_and_double_every_eighth() -> None:
    for value in (cost_ns_per_mib, latency_us):
        values = [value(code) for code in CODES]
        assert values == sorted(set(values))
        for code in range(0, CODE_MAX - CODES_PER_DOUBLING, CODES_PER_DOUBLING):
            assert values[code + CODES_PER_DOUBLING] == 2 * values[code]


def test_a_code_is_the_exact_root_of_two_rounded_once() -> None:
    # x rounds 2**(c/8) x base exactly if (x - 1/2)**8 <= base**8 x 2**c <= (x + 1/2)**8.
    for base, value in (
        (COST_NS_PER_MIB_FASTEST, cost_ns_per_mib),
        (LATENCY_US_SHORTEST, latency_us),
    ):
        for code in range(80):
            power = base**8 * 2**code
            below, above = Fraction(2 * value(code) - 1, 2), Fraction(2 * value(code) + 1, 2)
            assert below**8 <= power <= above**8


@given(st.integers(0, 2**70))
def test_a_cost_gets_the_code_whose_value_is_nearest_by_ratio(cost: int) -> None:
    code = code_of_cost(cost)
    clamped = min(max(cost, cost_ns_per_mib(0)), cost_ns_per_mib(CODE_MAX))
    ratio = Fraction(clamped, cost_ns_per_mib(code))
    # Half a step is 2**(1/16) = 1.0443; rounding of the bounds adds less than a millionth.
    assert Fraction(1, 1_044_275) * 10**6 < ratio < Fraction(1_044_275, 10**6)


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_codes_keep_the_order_of_costs_and_latencies(one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert code_of_cost(low) <= code_of_cost(high)
    assert code_of_latency(low) <= code_of_latency(high)


def test_an_unknown_code_means_the_optimistic_default() -> None:
    assert cost_ns_per_mib(CODE_UNKNOWN) == cost_ns_per_mib(COST_CODE_DEFAULT)
    assert latency_us(CODE_UNKNOWN) == latency_us(LATENCY_CODE_DEFAULT)


def test_a_transfer_without_measurable_time_has_the_fastest_code() -> None:
    assert code_of_cost(transfer_cost_ns_per_mib(512 * 1024, 0)) == 0
    assert transfer_cost_ns_per_mib(MIB, 10) == 10_000
    assert transfer_cost_ns_per_mib(0, 10) == 10_000 * MIB
