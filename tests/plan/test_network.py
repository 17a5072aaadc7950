import random

from hypothesis import given
from hypothesis import strategies as st

from greedw_p2p.ids import Incarnation, NodeId
from greedw_p2p.links.cell import CODE_UNKNOWN, LinkCell
from greedw_p2p.links.scale import COST_NS_PER_MIB_FASTEST, cost_ns_per_mib, latency_us
from greedw_p2p.plan.network import HOP_US, SLOW_PAIR_CODES, Network

NODES = tuple(NodeId(f"{number:032x}") for number in range(5))


def _cell(source: int, target: int, cost: int, latency: int = CODE_UNKNOWN) -> LinkCell:
    return LinkCell(NODES[target], NODES[source], Incarnation(1), 1, latency, cost)


def test_a_nodes_capacity_is_its_best_rate_each_way_and_its_cost_the_worse_way() -> None:
    network = Network.of(NODES[:3], [_cell(0, 1, 20), _cell(0, 2, 30), _cell(1, 0, 40)])
    assert network.upload[0] == cost_ns_per_mib(20)
    assert network.download[0] == cost_ns_per_mib(40)
    assert network.cost[0] == cost_ns_per_mib(40)


def test_an_unmeasured_node_counts_as_the_best_one_known_not_better() -> None:
    network = Network.of(NODES[:4], [_cell(0, 1, 50), _cell(1, 0, 44), _cell(2, 0, CODE_UNKNOWN)])
    assert network.cost[3] == cost_ns_per_mib(44)
    assert network.upload[2] == cost_ns_per_mib(44)


def test_a_network_without_measurements_has_the_default_costs() -> None:
    network = Network.of(NODES, ())
    assert network.cost == (COST_NS_PER_MIB_FASTEST,) * len(NODES)
    assert not network.slow_pair.any()
    assert {int(us) for us in network.hop_us.flat} == {0, 2 * latency_us(CODE_UNKNOWN) + HOP_US}


def test_a_pair_is_slow_only_if_clearly_below_what_both_ends_can_do() -> None:
    cells = [_cell(a, b, 20) for a in range(4) for b in range(4) if a != b and {a, b} != {0, 1}]
    for above, is_slow in ((SLOW_PAIR_CODES - 1, False), (SLOW_PAIR_CODES, True)):
        network = Network.of(NODES[:4], [*cells, _cell(0, 1, 20 + above), _cell(1, 0, 20)])
        found = [(a, b) for a in range(4) for b in range(4) if network.slow_pair[a, b]]
        assert found == ([(0, 1), (1, 0)] if is_slow else [])


def test_a_slow_node_does_not_make_its_pairs_slow() -> None:
    codes = [20, 20, 50, 20]
    cells = [_cell(a, b, max(codes[a], codes[b])) for a in range(4) for b in range(4) if a != b]
    network = Network.of(NODES[:4], cells)
    assert network.cost == tuple(cost_ns_per_mib(code) for code in codes)
    assert not network.slow_pair.any()


@given(st.randoms(use_true_random=False))
def test_a_network_does_not_depend_on_the_order_of_nodes_and_cells(rng: random.Random) -> None:
    cells = [
        _cell(a, b, rng.randrange(-1, 60), rng.randrange(-1, 60))
        for a in range(5)
        for b in range(5)
        if a != b and rng.random() < 0.8
    ]
    nodes = list(NODES)
    plain = Network.of(nodes, cells)
    rng.shuffle(cells)
    rng.shuffle(nodes)
    shuffled = Network.of(nodes, cells)
    assert (plain.nodes, plain.upload, plain.download) == (
        shuffled.nodes,
        shuffled.upload,
        shuffled.download,
    )
    assert (plain.hop_us == shuffled.hop_us).all()
    assert (plain.slow_pair == shuffled.slow_pair).all()
    assert (plain.hop_us == plain.hop_us.T).all()
    assert (plain.slow_pair == plain.slow_pair.T).all()
