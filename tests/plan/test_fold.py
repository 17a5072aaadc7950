from collections.abc import Iterable, Mapping

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


def _report(node: int, units: int, compute_us: int) -> RoundReport:
    return RoundReport(NODES[node], units, compute_us, 0, 0, 0)


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
    assert _speed(view, 0).unit_ns == 100_000
    view = _with_reports(view, config, _report(0, 100, 12_000))
    assert _speed(view, 0).unit_ns == 106_000


def test_one_far_report_is_held_back_and_the_second_in_a_row_makes_the_speed_jump() -> None:
    config = _config([0])
    view = _with_reports(genesis_view(config), config, _report(0, 100, 10_000))
    held = _with_reports(view, config, _report(0, 100, 40_000))
    assert _speed(held, 0).unit_ns == 100_000
    back = _with_reports(held, config, _report(0, 100, 10_000))
    assert _speed(back, 0) == _speed(view, 0)
    jumped = _with_reports(held, config, _report(0, 100, 42_000))
    assert _speed(jumped, 0) == Speed(NODES[0], 420_000, 0, 0)


def test_far_reports_on_both_sides_do_not_make_the_speed_jump() -> None:
    config = _config([0])
    view = _with_reports(genesis_view(config), config, _report(0, 100, 10_000))
    for compute_us in (40_000, 2_000, 40_000, 2_000):
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
    view = _with_reports(genesis_view(config), config, _report(0, 500, 50_000))
    view = _with_reports(view, config, _report(0, 500, 50_000), _report(1, 500, 52_000))
    # Splitting 490 to 510 would save 1.9 %.
    assert _shares(view, 1_000) == [500, 500]
    view = _with_reports(genesis_view(config), config, _report(0, 500, 50_000))
    view = _with_reports(view, config, _report(0, 500, 50_000), _report(1, 500, 56_000))
    assert _shares(view, 1_000) == [528, 472]


def test_a_node_that_became_four_times_slower_has_its_new_share_after_two_rounds() -> None:
    config = _config([0, 1])
    view = _with_reports(genesis_view(config), config, _report(0, 50, 5_000), _report(1, 50, 5_000))
    for _ in range(2):
        view = _with_reports(view, config, _report(0, 50, 5_000), _report(1, 50, 20_000))
    assert _shares(view, 100) == [80, 20]


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
