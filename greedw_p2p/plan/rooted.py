"""Rooted trees over ranks: the plain functions that building, judging and re-rooting share.

A tree is a tuple of parents, indexed by rank in id order; the root is its own parent.
"""

from collections.abc import Sequence
from typing import TypeAlias

from greedw_p2p.ids import NodeId
from greedw_p2p.plan.network import Matrix, Network
from greedw_p2p.view import Edge

Parents: TypeAlias = tuple[int, ...]

Hops: TypeAlias = Matrix | list[list[int]]
"""Times of hops. Lists are worth it where many walks follow one another."""


def edges_of(nodes: Sequence[NodeId], parents: Parents) -> tuple[Edge, ...]:
    """Return the edges of a tree over ``nodes``, sorted by node."""
    return tuple(Edge(node, nodes[parents[rank]]) for rank, node in enumerate(nodes))


def parents_of(nodes: Sequence[NodeId], edges: Sequence[Edge]) -> Parents | None:
    """Return a tree's parents over ``nodes``, or None if it does not span exactly these."""
    rank = {node: index for index, node in enumerate(nodes)}
    if tuple(edge.node for edge in edges) != tuple(nodes):
        return None
    return tuple(rank[edge.parent] for edge in edges)


def neighbours(parents: Parents) -> list[list[int]]:
    """Return each node's neighbours, ascending."""
    adjacent: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents):
        if node != parent:
            adjacent[node].append(parent)
            adjacent[parent].append(node)
    return [sorted(found) for found in adjacent]


def parents_from(adjacent: Sequence[Sequence[int]], root: int) -> Parents:
    """Return the parents of a tree given by its neighbours."""
    parents = [root] * len(adjacent)
    stack = [root]
    while stack:
        node = stack.pop()
        for other in adjacent[node]:
            if other != parents[node]:
                parents[other] = node
                stack.append(other)
    return tuple(parents)


def degrees(parents: Parents) -> list[int]:
    """Return each node's number of tree neighbours."""
    degree = [0] * len(parents)
    for node, parent in enumerate(parents):
        if node != parent:
            degree[node] += 1
            degree[parent] += 1
    return degree


def rerooted(parents: Parents, root: int) -> Parents:
    """Return the same edges, rooted at ``root``."""
    turned = list(parents)
    node, above = root, root
    while True:
        parent = parents[node]
        turned[node] = above
        if parent == node:
            return tuple(turned)
        node, above = parent, node


def distances(adjacent: Sequence[Sequence[int]], hop_us: Hops, start: int) -> list[int]:
    """Return the latency from ``start`` to every node along the tree."""
    distance = [-1] * len(adjacent)
    distance[start] = 0
    stack = [start]
    while stack:
        node = stack.pop()
        for other in adjacent[node]:
            if distance[other] < 0:
                distance[other] = distance[node] + int(hop_us[node][other])
                stack.append(other)
    return distance


def eccentricities(parents: Parents, hop_us: Matrix) -> list[int]:
    """Return each node's distance to the node furthest from it, in microseconds.

    In a tree that is the distance to the further end of any longest path.
    """
    adjacent = neighbours(parents)
    start = distances(adjacent, hop_us, 0)
    one_end = start.index(max(start))
    from_one = distances(adjacent, hop_us, one_end)
    other_end = from_one.index(max(from_one))
    from_other = distances(adjacent, hop_us, other_end)
    return [max(pair) for pair in zip(from_one, from_other, strict=True)]


def depth_in_hops(parents: Parents) -> int:
    """Return how many edges lie between the root and the node furthest below it."""
    depth: dict[int, int] = {}
    for start in range(len(parents)):
        path = [start]
        while path[-1] not in depth and parents[path[-1]] != path[-1]:
            path.append(parents[path[-1]])
        top = depth.setdefault(path[-1], 0)
        for steps, node in enumerate(reversed(path)):
            depth[node] = top + steps
    return max(depth.values())


def centre_of(parents: Parents, hop_us: Matrix) -> int:
    """Return the node from which the furthest one is nearest; ties to the smaller id."""
    eccentricity = eccentricities(parents, hop_us)
    return eccentricity.index(min(eccentricity))


def bottleneck_ns_per_mib(parents: Parents, network: Network) -> int:
    """Return what limits an all-reduce over the tree: the busiest node or the slowest edge."""
    loads = (degree * cost for degree, cost in zip(degrees(parents), network.cost, strict=True))
    pairs = (int(network.slow_pair[node, parent]) for node, parent in enumerate(parents))
    return max(*loads, *pairs)


def slow_edges(parents: Parents, network: Network) -> int:
    """Return how many edges use a slow pair: each crosses a link that others may share."""
    return sum(1 for node, parent in enumerate(parents) if network.slow_pair[node, parent])
