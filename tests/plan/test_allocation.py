from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from greedw_p2p.ids import NodeId
from greedw_p2p.plan.allocation import allocate, makespan_ns, split
from greedw_p2p.view import Speed

NODES = tuple(NodeId(f"{number:032x}") for number in range(8))

PACES = st.tuples(st.integers(0, 50), st.integers(1, 40))
"""fixed_ns and unit_ns; small, so that ties are common."""


def _splits(units: int, count: int) -> Iterator[list[int]]:
    """Yield every way to give ``units`` to ``count`` nodes, at least one each."""
    if count == 1:
        yield [units]
        return
    for first in range(1, units - count + 2):
        for rest in _splits(units - first, count - 1):
            yield [first, *rest]


@given(st.lists(PACES, min_size=1, max_size=4), st.integers(0, 8))
def test_shares_finish_as_early_as_the_best_of_all_splits(
    paces: list[tuple[int, int]], extra: int
) -> None:
    units = len(paces) + extra
    best = min(makespan_ns(paces, shares) for shares in _splits(units, len(paces)))
    shares = split(paces, units)
    assert sum(shares) == units
    assert min(shares) >= 1
    assert makespan_ns(paces, shares) == best


@given(
    st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 2**40)), min_size=1, max_size=40),
    st.integers(0, 5_000),
)
def test_shares_of_any_size_add_up_and_no_unit_would_finish_earlier_elsewhere(
    paces: list[tuple[int, int]], units: int
) -> None:
    shares = split(paces, units)
    assert sum(shares) == units
    finish = [fixed + share * unit for (fixed, unit), share in zip(paces, shares, strict=True)]
    if units >= len(paces):
        assert min(shares) >= 1
        soonest = min(end + unit for end, (_, unit) in zip(finish, paces, strict=True))
        last = max((end for end, share in zip(finish, shares, strict=True) if share > 1), default=0)
        assert last <= soonest


@given(st.lists(PACES, min_size=2, max_size=8), st.data())
def test_with_fewer_units_than_nodes_the_fastest_get_one_each(
    paces: list[tuple[int, int]], data: st.DataObject
) -> None:
    units = data.draw(st.integers(0, len(paces) - 1))
    shares = split(paces, units)
    assert sorted(shares, reverse=True) == [1] * units + [0] * (len(paces) - units)
    busy = [sum(pace) for pace, share in zip(paces, shares, strict=True) if share]
    idle = [sum(pace) for pace, share in zip(paces, shares, strict=True) if not share]
    assert max(busy, default=0) <= min(idle)


@given(st.data())
def test_shares_do_not_depend_on_the_order_of_nodes_and_speeds(data: st.DataObject) -> None:
    speeds = [
        Speed(node, *data.draw(st.tuples(st.integers(1, 9), st.integers(0, 9))), 0, 0)
        for node in data.draw(st.lists(st.sampled_from(NODES), unique=True))
    ]
    nodes = data.draw(st.lists(st.sampled_from(NODES), min_size=1, unique=True))
    units = data.draw(st.integers(0, 60))
    quotas = allocate(nodes, units, speeds)
    shuffled = allocate(
        data.draw(st.permutations(nodes)), units, data.draw(st.permutations(speeds))
    )
    assert quotas == shuffled
    assert [quota.node for quota in quotas] == sorted(nodes)
    assert sum(quota.units for quota in quotas) == units


def test_shares_are_in_proportion_to_speed() -> None:
    speeds = [Speed(NODES[0], 1_000, 0, 0, 0), Speed(NODES[1], 4_000, 0, 0, 0)]
    quotas = allocate(NODES[:2], 100, speeds)
    assert [quota.units for quota in quotas] == [80, 20]


def test_a_fixed_cost_is_made_up_for_by_fewer_units() -> None:
    speeds = [Speed(NODES[0], 100, 0, 0, 0), Speed(NODES[1], 100, 2_000, 0, 0)]
    quotas = allocate(NODES[:2], 100, speeds)
    assert [quota.units for quota in quotas] == [60, 40]


def test_a_node_of_unknown_speed_counts_as_the_median_of_the_known() -> None:
    speeds = [Speed(node, pace, 0, 0, 0) for node, pace in zip(NODES, (10, 20, 40), strict=False)]
    quotas = allocate(NODES[:4], 9_000, speeds)
    assert quotas[3].units == quotas[1].units
    assert [q.units for q in allocate(NODES[4:8], 8, speeds)] == [2, 2, 2, 2]
