from hypothesis import given
from hypothesis import strategies as st

from greedw_p2p.ids import Incarnation, NodeId
from greedw_p2p.links.cell import LinkCell
from greedw_p2p.links.table import LinkTable

NODES = tuple(NodeId(f"{number:032x}") for number in range(4))

# Few values, so that equal versions with different codes, as a cloned writer makes, are common.
CELLS = st.builds(
    LinkCell,
    writer=st.sampled_from(NODES),
    peer=st.sampled_from(NODES),
    incarnation=st.integers(1, 2).map(Incarnation),
    version=st.integers(0, 2),
    latency=st.integers(-1, 2),
    cost=st.integers(-1, 2),
)
CELL_LISTS = st.lists(CELLS, max_size=30)


def _cell(writer: int, peer: int, *, life: int = 1, version: int = 1, cost: int = 5) -> LinkCell:
    return LinkCell(NODES[writer], NODES[peer], Incarnation(life), version, 3, cost)


@given(st.data(), CELL_LISTS)
def test_merge_gives_the_same_table_in_any_order(
    data: st.DataObject, cells: list[LinkCell]
) -> None:
    shuffled = data.draw(st.permutations(cells))
    assert LinkTable(cells).cells() == LinkTable(shuffled).cells()


@given(CELL_LISTS, CELL_LISTS, CELL_LISTS)
def test_merge_of_tables_is_associative(
    one: list[LinkCell], two: list[LinkCell], three: list[LinkCell]
) -> None:
    left = LinkTable(LinkTable([*one, *two]).cells())
    left.merge(three)
    right = LinkTable(one)
    right.merge(LinkTable([*two, *three]).cells())
    assert left.cells() == right.cells()


@given(CELL_LISTS, CELL_LISTS)
def test_merge_reports_exactly_the_cells_that_changed_and_nothing_twice(
    before: list[LinkCell], news: list[LinkCell]
) -> None:
    table = LinkTable(before)
    old = table.cells()
    changed = table.merge(news)
    assert sorted(changed) == sorted(set(table.cells()) - set(old))
    assert table.merge(news) == ()
    assert table.merge(table.cells()) == ()


@given(CELL_LISTS, CELL_LISTS)
def test_what_is_newer_than_another_table_is_what_that_table_would_change(
    mine: list[LinkCell], theirs: list[LinkCell]
) -> None:
    table, other = LinkTable(mine), LinkTable(theirs)
    newer = table.newer_than(other.cells())
    assert other.merge(table.cells()) == newer


def test_a_later_life_of_the_writer_counts_more_than_any_version() -> None:
    table = LinkTable([_cell(0, 1, life=1, version=99, cost=5)])
    table.merge([_cell(0, 1, life=2, version=1, cost=7)])
    found = table.get(writer=NODES[0], peer=NODES[1])
    assert found is not None
    assert found.cost == 7
    assert table.merge([_cell(0, 1, life=1, version=100)]) == ()


def test_forgetting_a_node_drops_what_it_wrote_and_what_was_written_of_it() -> None:
    table = LinkTable([_cell(0, 1), _cell(1, 0), _cell(2, 1), _cell(2, 0)])
    table.forget({NODES[1]})
    assert table.cells() == (_cell(2, 0),)
    assert table.nodes() == {NODES[0], NODES[2]}


def test_cells_of_others_than_members_are_not_offered_as_news() -> None:
    table = LinkTable([_cell(0, 1), _cell(0, 2), _cell(2, 0), _cell(1, 0)])
    assert table.newer_than((), NODES[:2]) == (_cell(0, 1), _cell(1, 0))
