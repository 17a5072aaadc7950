import random
from collections.abc import Iterable, Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from greedw_p2p.config import Address, Config, Member
from greedw_p2p.ids import Incarnation, NodeId
from greedw_p2p.links.cell import LinkCell
from greedw_p2p.plan.fold import genesis_view, next_view, preferred_root
from greedw_p2p.plan.planner import make_plan
from greedw_p2p.view import Edge, RoundReport, Speed, View, ViewDelta

NODES = tuple(NodeId(f"{number:032x}") for number in range(10))


def _config(numbers: Iterable[int]) -> Config:
    return Config(
        tuple(
            Member(NODES[n], Incarnation(1), f"node-{n}", Address("127.0.0.1", 1_000 + n))
            for n in numbers
        )
    )


def _report(node: int, units: int, compute_us: int, fixed_us: int = 0) -> RoundReport:
    return RoundReport(NODES[node], units, compute_us, fixed_us, 0, 0, 0)


def _cells(codes: Mapping[int, int], version: int = 1) -> tuple[LinkCell, ...]:
    """Return all cells among nodes that each have their cost code in both directions."""
    return tuple(
        LinkCell(NODES[a], NODES[b], Incarnation(1), version, 8, max(codes[a], codes[b]))
        for a in codes
        for b in codes
        if a != b
    )


def _with_reports(view: View, config: Config, *reports: RoundReport) -> View:
    return next_view(view, config, ViewDelta((), reports))


def _speed(view: View, node: int) -> Speed:
    return next(speed for speed in view.speeds if speed.node == NODES[node])


def _shares(view: View, units: int) -> list[int]:
    return [quota.units for quota in make_plan(view, view.members, units, 0).quotas]


# -- members --------------------------------------------------------------------------------------


def test_genesis_of_one_node_is_a_tree_of_one_for_entry_one() -> None:
    view = genesis_view(_config([4]))
    assert view.entry == 1
    assert view.members == (NODES[4],)
    assert view.tree == (Edge(NODES[4], NODES[4]),)
    assert preferred_root(view) == NODES[4]


def test_a_joiner_enters_the_tree_and_one_that_left_leaves_no_trace() -> None:
    view = genesis_view(_config([2, 0]))
    config = _config([2, 0, 1])
    view = next_view(view, config, ViewDelta(_cells({0: 5, 1: 30, 2: 9})))
    view = _with_reports(view, config, *(_report(n, 10, 1_000) for n in range(3)))
    assert view.members == NODES[:3]
    assert [edge.node for edge in view.tree] == list(NODES[:3])
    after = next_view(view, _config([0, 1]), ViewDelta())
    assert NODES[2].encode() not in str(after).encode()
    assert [edge.node for edge in after.tree] == [NODES[0], NODES[1]]
    assert after.entry == 4


def test_cells_and_reports_of_strangers_do_not_enter_the_view() -> None:
    config = _config([0, 1])
    delta = ViewDelta(_cells({0: 5, 1: 5, 7: 5}), (_report(7, 5, 5),))
    view = next_view(genesis_view(config), config, delta)
    assert {(cell.writer, cell.peer) for cell in view.links} == {
        (NODES[0], NODES[1]),
        (NODES[1], NODES[0]),
    }
    assert view.speeds == ()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_the_view_does_not_depend_on_the_order_within_config_and_delta(data: st.DataObject) -> None:
    codes = {n: data.draw(st.integers(0, 60)) for n in range(5)}
    cells = _cells(codes)
    reports = tuple(_report(n, 10, 1_000 + n) for n in range(5))
    order = data.draw(st.permutations(range(5)))
    plain = next_view(genesis_view(_config(range(5))), _config(range(5)), ViewDelta(cells, reports))
    shuffled = next_view(
        genesis_view(_config(order)),
        _config(order),
        ViewDelta(
            tuple(data.draw(st.permutations(cells))), tuple(data.draw(st.permutations(reports)))
        ),
    )
    assert plain.digest() == shuffled.digest()


# -- speeds ---------------------------------------------------------------------------------------


def test_the_first_report_sets_a_speed_and_later_ones_move_it_by_three_tenths() -> None:
    config = _config([0])
    view = _with_reports(genesis_view(config), config, _report(0, 100, 10_000))
    assert _speed(view, 0) == Speed(NODES[0], 100_000, 0, 0, 0)
    for compute_us, unit_ns in ((11_000, 103_000), (10_000, 102_100), (9_210, 99_100)):
        view = _with_reports(view, config, _report(0, 100, compute_us))
        assert _speed(view, 0).unit_ns == unit_ns


def test_a_report_that_is_off_by_more_than_an_eighth_counts_as_an_eighth() -> None:
    config = _config([0])
    view = _with_reports(genesis_view(config), config, _report(0, 100, 8_000))
    for compute_us in (9_000, 10_000, 11_900):
        assert _speed(_with_reports(view, config, _report(0, 100, compute_us)), 0).unit_ns == 83_000
    for compute_us in (7_000, 6_000, 5_400):
        assert _speed(_with_reports(view, config, _report(0, 100, compute_us)), 0).unit_ns == 77_000


def test_the_fixed_cost_is_taken_off_and_kept_in_its_ratio_to_the_pace() -> None:
    config = _config([0])
    view = _with_reports(genesis_view(config), config, _report(0, 60, 900, 300))
    assert _speed(view, 0) == Speed(NODES[0], 10_000, 300_000, 0, 0)
    # All of it takes 1.1 times as long.
    view = _with_reports(view, config, _report(0, 60, 990, 330))
    assert _speed(view, 0) == Speed(NODES[0], 10_300, 309_000, 0, 0)


def test_a_fixed_cost_beyond_the_whole_time_leaves_a_pace_of_at_least_one() -> None:
    config = _config([0, 1])
    reports = _report(0, 60, 900, 2**62 - 1), _report(1, 60, 900, 900)
    view = _with_reports(genesis_view(config), config, *reports)
    assert [speed.unit_ns for speed in view.speeds] == [1, 1]
    assert sum(_shares(view, 100)) == 100


def test_two_slow_reports_in_a_row_are_held_back_and_the_third_makes_the_speed_jump() -> None:
    config = _config([0])
    view = _with_reports(genesis_view(config), config, _report(0, 100, 10_000, 2_000))
    calm = _speed(view, 0)
    held = view
    for count, compute_us in ((1, 40_000), (2, 36_000)):
        held = _with_reports(held, config, _report(0, 100, compute_us, compute_us // 5))
        assert _speed(held, 0).unit_ns == calm.unit_ns == 80_000
        assert _speed(held, 0).outliers == count
    back = _with_reports(held, config, _report(0, 100, 10_000, 2_000))
    assert _speed(back, 0) == calm
    # To the nearest of the three.
    jumped = _with_reports(held, config, _report(0, 100, 42_000, 8_400))
    assert _speed(jumped, 0) == Speed(NODES[0], 288_000, 7_200_000, 0, 0)


def test_one_far_faster_report_makes_the_speed_jump_at_once() -> None:
    config = _config([0])
    view = _with_reports(genesis_view(config), config, _report(0, 100, 10_000))
    view = _with_reports(view, config, _report(0, 100, 40_000))
    view = _with_reports(view, config, _report(0, 100, 4_000))
    assert _speed(view, 0) == Speed(NODES[0], 40_000, 0, 0, 0)


def test_slow_reports_that_are_not_in_a_row_do_not_make_the_speed_jump() -> None:
    config = _config([0])
    view = _with_reports(genesis_view(config), config, _report(0, 100, 10_000))
    for compute_us in (40_000, 30_000, 10_000, 20_000, 40_000, 10_000):
        view = _with_reports(view, config, _report(0, 100, compute_us))
        assert _speed(view, 0).unit_ns == 100_000


def test_reports_without_units_or_time_say_nothing() -> None:
    config = _config([0, 1])
    view = _with_reports(genesis_view(config), config, _report(0, 0, 50), _report(1, 50, 0))
    assert view.speeds == ()


# -- shares ---------------------------------------------------------------------------------------


def test_shares_follow_speeds_after_the_first_round() -> None:
    config = _config([0, 1])
    view = genesis_view(config)
    assert _shares(view, 100) == [50, 50]
    view = _with_reports(view, config, _report(0, 50, 5_000), _report(1, 50, 20_000))
    assert _shares(view, 100) == [80, 20]


def test_shares_stay_for_a_gain_below_three_percent_and_move_for_more() -> None:
    config = _config([0, 1])
    calm = _report(0, 500, 50_000)
    for compute_us, shares in ((52_000, [500, 500]), (56_000, [528, 472])):
        view = _with_reports(genesis_view(config), config, calm)
        # Splitting 510 to 490 would save 1.9 %.
        view = _with_reports(view, config, calm, _report(1, 500, compute_us))
        assert _shares(view, 1_000) == shares


def test_the_gain_is_counted_in_the_whole_finish_time_of_the_round() -> None:
    config = _config([0, 1])
    for fixed_us, shares in ((0, [528, 472]), (200_000, [500, 500])):
        calm = _report(0, 500, fixed_us + 50_000, fixed_us)
        view = _with_reports(genesis_view(config), config, calm)
        slower = _report(1, 500, fixed_us + 56_000, fixed_us)
        assert _shares(_with_reports(view, config, calm, slower), 1_000) == shares


def test_a_node_that_became_four_times_slower_has_its_new_share_after_three_rounds() -> None:
    config = _config([0, 1])
    view = _with_reports(genesis_view(config), config, _report(0, 50, 5_000), _report(1, 50, 5_000))
    for _ in range(3):
        assert _shares(view, 100) == [50, 50]
        view = _with_reports(view, config, _report(0, 50, 5_000), _report(1, 50, 20_000))
    assert _shares(view, 100) == [80, 20]


FIXED_US, UNIT_US = 200, 7


def _round(view: View, config: Config, delays: Sequence[float]) -> View:
    """Fold a round whose nodes took their time by the fixed cost and the shares, times a delay."""
    reports: list[RoundReport] = []
    for node, (share, delay) in enumerate(zip(_shares(view, 256), delays, strict=True)):
        compute_us = int((FIXED_US + share * UNIT_US) * delay)
        ratio = FIXED_US / (FIXED_US + share * UNIT_US)
        reports.append(_report(node, share, compute_us, int(compute_us * ratio)))
    return _with_reports(view, config, *reports)


def test_shares_of_equal_nodes_come_back_to_equal_from_any_start() -> None:
    # With the fixed cost taken for pace, few units made a node look slow, and keep its few units.
    config = _config(range(4))
    view = genesis_view(config)
    start = (_report(n, 64, compute_us) for n, compute_us in enumerate((300, 500, 800, 3_000)))
    view = _with_reports(view, config, *start)
    assert max(_shares(view, 256)) > 90
    for _ in range(20):
        view = _round(view, config, [1.0] * 4)
    assert all(abs(share - 64) <= 4 for share in _shares(view, 256))


def test_shares_of_equal_nodes_stay_near_equal_under_the_delays_of_a_busy_host() -> None:
    # Delays as measured with four workers on two cores, shared with other programs.
    rng = random.Random(5)  # noqa: S311 - seeded, not secret
    quantiles = (
        *(1.03, 1.09, 1.12, 1.15, 1.18, 1.20, 1.22, 1.24, 1.26, 1.28),
        *(1.30, 1.33, 1.36, 1.40, 1.45, 1.55, 1.70, 2.00, 2.40, 3.50),
    )
    config = _config(range(4))
    view = genesis_view(config)
    worst: list[int] = []
    for _ in range(300):
        view = _round(view, config, rng.choices(quantiles, k=4))
        worst.append(max(abs(share - 64) for share in _shares(view, 256)))
    worst.sort()
    assert worst[150] <= 7
    assert worst[270] <= 12


# -- the tree -------------------------------------------------------------------------------------


def _measured(codes: Mapping[int, int]) -> tuple[View, Config]:
    config = _config(codes)
    return next_view(genesis_view(config), config, ViewDelta(_cells(codes))), config


def test_the_tree_stays_while_a_new_one_is_less_than_eight_percent_better() -> None:
    # A hub of three ends costs 3 x c(40). With the others at 44 a chain is 5.7 % better, at 43 it
    # is 13.5 % better.
    def news(code: int, version: int) -> ViewDelta:
        return ViewDelta(_cells({0: 40, 1: 40, 2: code, 3: code, 4: code}, version))

    config = _config(range(5))
    view = next_view(genesis_view(config), config, news(46, 1))
    assert _ends(view, 0) == 3
    nearly = next_view(view, config, news(44, 2))
    assert nearly.links != view.links
    assert nearly.tree == view.tree
    clearly = next_view(view, config, news(43, 2))
    assert _ends(clearly, 0) == 2


def test_the_tree_changes_when_an_inner_node_became_slow() -> None:
    view, config = _measured(dict.fromkeys(range(6), 40))
    inner = next(n for n in range(6) if _ends(view, n) == 2)
    codes = {n: 60 if n == inner else 40 for n in range(6)}
    after = next_view(view, config, ViewDelta(_cells(codes, version=2)))
    assert _ends(after, inner) == 1


def _ends(view: View, node: int) -> int:
    edges = [edge for edge in view.tree if edge.node != edge.parent]
    return sum(NODES[node] in (edge.node, edge.parent) for edge in edges)


def test_leadership_does_not_wander_while_costs_change_a_little() -> None:
    view, config = _measured(dict.fromkeys(range(8), 40))
    root = preferred_root(view)
    for version in range(2, 30):
        codes = {n: 40 + (n * version) % 2 for n in range(8)}
        view = next_view(view, config, ViewDelta(_cells(codes, version)))
        assert preferred_root(view) == root


def test_the_founder_stays_root_when_a_second_node_joins() -> None:
    view = next_view(genesis_view(_config([5])), _config([5, 0]), ViewDelta())
    assert preferred_root(view) == NODES[5]


def test_an_entry_without_news_changes_nothing_but_the_entry() -> None:
    view, config = _measured({0: 40, 1: 50, 2: 44, 3: 61})
    after = next_view(view, config, ViewDelta(view.links))
    assert after == View(after.entry, view.members, view.links, view.speeds, view.basis, view.tree)
    assert after.entry == view.entry + 1
