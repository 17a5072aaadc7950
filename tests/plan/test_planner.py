import random
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from greedw_p2p.config import Address, Config, Member
from greedw_p2p.ids import EntryIndex, Incarnation, NodeId
from greedw_p2p.limits import CHUNK_BYTES_MAX, KIB, MIB
from greedw_p2p.links.cell import LinkCell
from greedw_p2p.links.scale import code_of_cost
from greedw_p2p.plan.fold import genesis_view, next_view, preferred_root
from greedw_p2p.plan.network import Network
from greedw_p2p.plan.plan import Plan, Tree
from greedw_p2p.plan.planner import bound_ns_per_mib, make_plan
from greedw_p2p.record import pack, unpack
from greedw_p2p.view import View, ViewDelta

NODES = tuple(NodeId(f"{number:032x}") for number in range(16))

SMALL, MIDDLING, LARGE = 800_000, 6_650_000, 100_000_000


def _view(mbits: Sequence[int]) -> View:
    """Return the view of nodes whose links have these rates, both ways, all measured."""
    count = len(mbits)
    config = Config(
        tuple(
            Member(NODES[n], Incarnation(1), f"node-{n}", Address("127.0.0.1", 1_000 + n))
            for n in range(count)
        )
    )
    cells = tuple(
        LinkCell(NODES[a], NODES[b], Incarnation(1), 1, 10, _code(min(mbits[a], mbits[b])))
        for a in range(count)
        for b in range(count)
        if a != b
    )
    return next_view(genesis_view(config), config, ViewDelta(cells))


def _code(mbit: int) -> int:
    return code_of_cost(MIB * 8_000 // mbit)


def _edges(tree: Tree) -> set[frozenset[NodeId]]:
    return {frozenset((e.node, e.parent)) for e in tree.edges if e.node != e.parent}


FAST = 8_000
BEDS = {
    "homogeneous": [200] * 8,
    "one slow": [50, *[200] * 7],
    "unequal": [50, 50, 100, 100, 200, 200, 400, 400],
    "fast": [FAST] * 4,
    "pair": [200, 200],
    "alone": [200],
}


@pytest.mark.parametrize("bed", BEDS)
@pytest.mark.parametrize("gradient_bytes", [0, 4, SMALL, MIDDLING, LARGE])
def test_every_plan_is_complete_and_within_its_bounds(bed: str, gradient_bytes: int) -> None:
    view = _view(BEDS[bed])
    plan = make_plan(view, view.members, 128, gradient_bytes)
    assert plan.entry == view.entry
    assert plan.view_digest == view.digest()
    assert tuple(edge.node for edge in plan.tree.edges) == view.members
    assert len(_edges(plan.tree)) == len(view.members) - 1
    assert sum(quota.units for quota in plan.quotas) == 128
    assert plan.chunk_bytes % 64 == 0
    assert 16 * KIB <= plan.chunk_bytes <= CHUNK_BYTES_MAX
    assert plan.chunk_bytes <= plan.send_buffer_bytes <= 256 * KIB
    assert MIB // 4 <= plan.window_chunks * plan.chunk_bytes <= 64 * MIB
    assert plan.bound_ns <= plan.predicted_ns
    assert unpack(pack(plan), Plan) == plan


def test_a_plan_is_rooted_at_the_leader_over_the_same_edges() -> None:
    view = _view(BEDS["unequal"])
    preferred = make_plan(view, view.members, 10, SMALL)
    assert preferred.tree.root == preferred_root(view)
    for leader in view.members:
        plan = make_plan(view, view.members, 10, SMALL, root=leader)
        assert plan.tree.root == leader
        assert plan.tree.parent_of(leader) is None
        assert _edges(plan.tree) == _edges(preferred.tree)
        below = {leader}
        for _ in view.members:
            below |= {child for node in below for child in plan.tree.children_of(node)}
        assert below == set(view.members)


def test_a_plan_without_some_members_has_a_tree_of_its_own() -> None:
    view = _view(BEDS["unequal"])
    hub = max(view.members, key=lambda node: sum(node in edge for edge in view_edges(view)))
    rest = tuple(node for node in view.members if node != hub)
    plan = make_plan(view, rest, 100, SMALL)
    assert tuple(edge.node for edge in plan.tree.edges) == rest
    assert [quota.node for quota in plan.quotas] == list(rest)
    assert make_plan(view, reversed(rest), 100, SMALL) == plan
    assert plan.tree.root in rest


def view_edges(view: View) -> list[tuple[NodeId, NodeId]]:
    return [(e.node, e.parent) for e in view.tree if e.node != e.parent]


def test_the_tree_in_force_is_used_even_where_another_would_be_better() -> None:
    view = _view(BEDS["one slow"])
    chain = genesis_view(
        Config(
            tuple(
                Member(node, Incarnation(1), "n", Address("127.0.0.1", 1)) for node in view.members
            )
        )
    ).tree
    kept = View(view.entry, view.members, view.links, view.speeds, view.basis, chain)
    assert chain != view.tree
    assert make_plan(kept, view.members, 10, SMALL).tree.edges == chain


def test_sizes_follow_the_gradient_and_the_network() -> None:
    slow, fast = _view(BEDS["homogeneous"]), _view(BEDS["fast"])
    sizes = [
        [
            make_plan(v, v.members, 8, nbytes).chunk_bytes // KIB
            for nbytes in (SMALL, MIDDLING, LARGE)
        ]
        for v in (slow, fast)
    ]
    assert sizes == [[16, 32, 64], [32, 128, 256]]


def test_the_window_holds_what_the_measurements_ask_for() -> None:
    # Equal nodes at 200 Mbit: a chain moves the gradient at half of 25 MB/s.
    slow = _view(BEDS["homogeneous"])
    plan = make_plan(slow, slow.members, 8, LARGE)
    assert plan.window_chunks * plan.chunk_bytes >= 0.25 * 12_500_000
    fast = _view(BEDS["fast"])
    for nbytes in (SMALL, LARGE):
        plan = make_plan(fast, fast.members, 8, nbytes)
        assert plan.window_chunks * plan.chunk_bytes >= 8 * MIB


@pytest.mark.parametrize("bed", ["homogeneous", "one slow", "unequal"])
def test_the_send_buffers_of_a_node_hold_ten_to_twenty_milliseconds(bed: str) -> None:
    mbits = BEDS[bed]
    view = _view(mbits)
    plan = make_plan(view, view.members, 8, MIDDLING)
    load = max(
        len(plan.tree.neighbours_of(node)) / (mbit * 125_000)
        for node, mbit in zip(view.members, mbits, strict=True)
    )
    assert 0.008 <= plan.send_buffer_bytes * load <= 0.022


def test_the_bound_is_the_known_one_of_the_measured_beds() -> None:
    # M = 6.65 MB at 95.6 % of 200 and 50 Mbit: 0.4657 s where all are equal, 1.065 s with one slow.
    for mbits, bound_s in (([191] * 8, 0.4657 * 1.0), ([48, *[191] * 7], 1.065 * 1.04)):
        view = _view(mbits)
        plan = make_plan(view, view.members, 8, MIDDLING)
        assert plan.bound_ns == pytest.approx(bound_s * 1e9, rel=0.06)


def test_a_slow_path_between_two_groups_bounds_every_tree() -> None:
    network = Network.of(NODES[:4], ())
    slow = network.slow_pair.copy()
    slow[:2, 2:] = slow[2:, :2] = 900_000_000
    split = replace(network, slow_pair=slow)
    assert bound_ns_per_mib(network) < 900_000_000
    assert bound_ns_per_mib(split) == 900_000_000


def test_the_plan_of_one_slow_node_is_within_a_tenth_of_the_bound() -> None:
    view = _view(BEDS["one slow"])
    plan = make_plan(view, view.members, 8, MIDDLING)
    assert plan.predicted_ns < 1.10 * plan.bound_ns


def test_a_thousand_nodes_are_planned_within_two_seconds_of_processor_time() -> None:
    # Measured at 0.3 s; the margin is for slower and busier machines.
    rng = random.Random(3)  # noqa: S311 - seeded, not secret
    nodes = tuple(NodeId(f"{number:032x}") for number in range(1_000))
    codes = [rng.randrange(60) for _ in nodes]
    cells = tuple(
        LinkCell(nodes[a], nodes[b], Incarnation(1), 1, rng.randrange(60), max(codes[a], codes[b]))
        for a in range(1_000)
        for b in rng.sample(range(1_000), 40)
        if a != b
    )
    started = time.process_time()
    plan = make_plan(View(EntryIndex(1), nodes, cells, (), (), ()), nodes, 10_000, LARGE)
    assert time.process_time() - started < 2
    assert len(_edges(plan.tree)) == 999
