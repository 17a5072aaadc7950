"""The greedy tree.

Minimise, in this order: the bottleneck, which is the greatest of degree x cost over the nodes and
of the cost of each slow pair in use; the number of slow pairs in use (they may share one link);
the latency from the centre to the furthest node; ids.

With node capacities alone, the N - 2 spare tree ends go one by one to the node with the least
(degree + 1) x cost, the highest-averages rule of d'Hondt, which is exactly optimal. With slow
pairs, a tree is grown under a budget as in Prim's algorithm (BSTJ 36, 1957), and the least budget
found by bisection. Where growth misses a proven bound and the nodes are few, an exact search
decides (``plan.exact``).

Hubs are kept at half of the bottleneck's load where the spare ends allow it: a deeper tree with
idle hubs was measured to be faster than a flat one with full ones.
"""

from collections.abc import Sequence
from heapq import heapify, heapreplace
from typing import Final

import numpy as np

from greedw_p2p.plan.exact import EXACT_NODES_MAX, best_tree, is_feasible
from greedw_p2p.plan.growth import grow, grow_any
from greedw_p2p.plan.network import Network
from greedw_p2p.plan.repair import repaired
from greedw_p2p.plan.rooted import Parents, bottleneck_ns_per_mib, centre_of, rerooted


def build_tree(network: Network) -> Parents:
    """Return the greedy tree over all nodes of the network, rooted at its latency centre."""
    count = len(network)
    if count <= 2:
        return (0,) * count
    ends = spare_ends(network.cost)
    bound = max(_load(network.cost, ends), spanning_bottleneck(network))
    budget, fallback = _least_budget(network, bound)
    hub_load = max(
        (e * cost for e, cost in zip(ends, network.cost, strict=True) if e > 1), default=0
    )
    tree = _tree_within(network, budget, max(hub_load, budget // 2)) or fallback
    assert tree is not None, "a budget comes with a tree, or an exact search finds one"
    return rerooted(tree, centre_of(tree, network.hop_us))


def spare_ends(costs: Sequence[int]) -> list[int]:
    """Return the degrees of a tree with the least max(degree x cost); ties to the smaller id."""
    degree = [1] * len(costs)
    heap = [(2 * cost, index) for index, cost in enumerate(costs)]
    heapify(heap)
    for _ in range(len(costs) - 2):
        load, index = heap[0]
        degree[index] += 1
        heapreplace(heap, (load + costs[index], index))
    return degree


def spanning_bottleneck(network: Network) -> int:
    """Return the least cost of a slow pair that every spanning tree must use, 0 if none.

    The greatest edge of a minimum spanning tree over the slow pairs' costs.
    """
    slow = network.slow_pair
    if not slow.any():
        return 0
    reach = slow[0].copy()
    inside = np.zeros(len(network), dtype=np.bool_)
    inside[0] = True
    worst = 0
    for _ in range(len(network) - 1):
        node = int(np.where(inside, _BEYOND, reach).argmin())
        worst = max(worst, int(reach[node]))
        inside[node] = True
        reach = np.minimum(reach, slow[node])
    return worst


_BEYOND: Final = 1 << 62


def caps_within(costs: Sequence[int], load: int) -> list[int]:
    """Return the most tree ends that each node may have under a load; a leaf is always allowed."""
    return [max(load // cost, 1) for cost in costs]


def _load(costs: Sequence[int], degree: Sequence[int]) -> int:
    return max(ends * cost for ends, cost in zip(degree, costs, strict=True))


def _least_budget(network: Network, bound: int) -> tuple[int, Parents | None]:
    """Return the least bottleneck for which a tree is found, and a tree if one was grown.

    ``bound`` is a proven lower one, which is nearly always reached.
    """
    if not network.slow_pair.any():
        return bound, None
    tree = _grown(network, bound)
    if tree is not None:
        return bound, tree
    if len(network) <= EXACT_NODES_MAX:
        return _least_exact(network, bound), None
    low = high = bound
    while tree is None:
        low, high = high, 2 * high
        tree = _grown(network, high)
    # Codes are 9 % apart: a finer search than 3 % finds next to nothing.
    while high - low > max(high // 32, 1):
        middle = (low + high) // 2
        better = _grown(network, middle)
        if better is None:
            low = middle
        else:
            tree, high = better, middle
    return bottleneck_ns_per_mib(tree, network), tree


def _least_exact(network: Network, bound: int) -> int:
    """Return the least bottleneck of any tree, by bisection over all values it can take."""
    loads = {ends * cost for cost in network.cost for ends in range(1, len(network))}
    values = loads | {int(cost) for cost in network.slow_pair.flat}
    candidates = sorted(value for value in values if value >= bound)
    low, high = 0, len(candidates) - 1
    while low < high:
        middle = (low + high) // 2
        budget = candidates[middle]
        if is_feasible(network, caps_within(network.cost, budget), budget):
            high = middle
        else:
            low = middle + 1
    return candidates[low]


def _grown(network: Network, budget: int) -> Parents | None:
    return grow_any(network, caps_within(network.cost, budget), budget)


def _tree_within(network: Network, budget: int, hub_load: int) -> Parents | None:
    """Return a good tree within the budget, with hubs loaded to ``hub_load`` if that can be."""
    for load in (hub_load, budget):
        caps = caps_within(network.cost, load)
        if len(network) <= EXACT_NODES_MAX:
            tree = best_tree(network, caps, budget)
        else:
            tree = grow(network, caps, budget)
            if tree is not None:
                tree = repaired(tree, network, caps, budget)
        if tree is not None:
            return tree
    return None
