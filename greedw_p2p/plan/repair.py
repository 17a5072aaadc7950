"""Local repair of a grown tree: exchange one edge at a time while that helps.

Growth is greedy: it cannot know that a node attached early would have served better elsewhere. An
exchange takes an edge out and joins the two halves by the best other pair with room. The aim is
the order of ``plan.tree``: fewer slow pairs, then a shorter longest path, which bounds the depth.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from greedw_p2p.plan.network import Matrix, Network
from greedw_p2p.plan.rooted import Parents, distances, neighbours, parents_from

REPAIR_NODES_MAX: Final = 128
"""Larger trees are left as grown: an exchange looks at every pair of nodes."""

STEPS_MAX: Final = 1_200
"""Nodes that may be walked over, once for each edge that is tried, before the repair ends."""

_IMPOSSIBLE: Final = 1 << 60

_Value: TypeAlias = tuple[int, int]
"""Slow pairs in use, then the longest path in microseconds."""

_Exchange: TypeAlias = tuple[_Value, tuple[int, int], tuple[int, int]]
"""What comes out of it, the edge to take out, the edge to put in."""


def repaired(parents: Parents, network: Network, caps: Sequence[int], budget: int) -> Parents:
    """Return a tree at least as good, within the same ``caps`` and ``budget``, root unchanged."""
    if len(network) > REPAIR_NODES_MAX:
        return parents
    repair = _Repair(parents, network, caps, budget)
    while repair.improve():
        pass
    root = next(rank for rank, parent in enumerate(parents) if rank == parent)
    return parents_from(repair.adjacent, root)


class _Repair:
    def __init__(
        self, parents: Parents, network: Network, caps: Sequence[int], budget: int
    ) -> None:
        self.adjacent = neighbours(parents)
        self._hop: Matrix = network.hop_us
        self._hop_rows: list[list[int]] = network.hop_us.tolist()
        self._steps = STEPS_MAX
        self._slow: NDArray[np.bool_] = network.slow_pair > 0
        self._forbidden: NDArray[np.bool_] = network.slow_pair > budget
        self._caps = np.array(caps, dtype=np.int64)

    def improve(self) -> bool:
        """Make the best exchange, if one that helps is found in the steps that are left."""
        path = self._longest_path()
        slow = self._slow_edges()
        now = (len(slow), int(sum(self._hop[a, b] for a, b in path)))
        for edges in (slow, path):
            tried = edges[: self._steps // len(self.adjacent)]
            self._steps -= len(tried) * len(self.adjacent)
            best = min((self._best_exchange(edge, now[0]) for edge in tried), default=None)
            if best is not None and best[0] < now:
                _, (a, b), (x, y) = best
                self._cut(a, b)
                self._join(x, y)
                return True
        return False

    def _slow_edges(self) -> list[tuple[int, int]]:
        return [
            (node, other)
            for node, others in enumerate(self.adjacent)
            for other in others
            if node < other and self._slow[node, other]
        ]

    def _longest_path(self) -> list[tuple[int, int]]:
        """Return the edges of a longest path."""
        start = distances(self.adjacent, self._hop_rows, 0)
        end = start.index(max(start))
        distance = distances(self.adjacent, self._hop_rows, end)
        node = distance.index(max(distance))
        path: list[tuple[int, int]] = []
        while node != end:
            nearer = min(self.adjacent[node], key=lambda other: distance[other])
            path.append((min(node, nearer), max(node, nearer)))
            node = nearer
        return path

    def _best_exchange(self, edge: tuple[int, int], slow_now: int) -> _Exchange:
        """Return the best pair to put in for ``edge``; the tree is as before afterwards."""
        a, b = edge
        self._cut(a, b)
        (near, near_reach, near_longest), (far, far_reach, far_longest) = (
            self._half(a),
            self._half(b),
        )
        room = np.array([len(others) for others in self.adjacent]) < self._caps
        pairs = np.ix_(near, far)
        longest = near_reach[:, None] + self._hop[pairs] + far_reach[None, :]
        longest = np.maximum(longest, max(near_longest, far_longest))
        slow = self._slow[pairs]
        key = longest + (slow.astype(np.int64) << 50)
        blocked = self._forbidden[pairs] | ~room[near][:, None] | ~room[far][None, :]
        key = np.where(blocked, _IMPOSSIBLE, key)
        row, column = divmod(int(key.argmin()), len(far))
        self._join(a, b)
        slow_after = slow_now - int(self._slow[a, b]) + int(slow[row, column])
        return (slow_after, int(longest[row, column])), edge, (int(near[row]), int(far[column]))

    def _half(self, start: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """Return the nodes of a half, each one's distance to its furthest, and the greatest."""
        from_start = distances(self.adjacent, self._hop_rows, start)
        one = from_start.index(max(from_start))
        from_one = distances(self.adjacent, self._hop_rows, one)
        other = from_one.index(max(from_one))
        from_other = distances(self.adjacent, self._hop_rows, other)
        nodes = [node for node, distance in enumerate(from_start) if distance >= 0]
        reach = [max(from_one[node], from_other[node]) for node in nodes]
        return np.array(nodes), np.array(reach), max(reach)

    def _cut(self, a: int, b: int) -> None:
        self.adjacent[a].remove(b)
        self.adjacent[b].remove(a)

    def _join(self, a: int, b: int) -> None:
        self.adjacent[a] = sorted([*self.adjacent[a], b])
        self.adjacent[b] = sorted([*self.adjacent[b], a])
