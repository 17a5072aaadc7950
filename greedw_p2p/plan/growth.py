"""Growing a tree under a budget, as in Prim's algorithm, with a limit on every node's degree."""

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from greedw_p2p.plan.network import Matrix, Network
from greedw_p2p.plan.rooted import Parents, eccentricities, slow_edges

ALL_ROOTS_NODES_MAX: Final = 24
SECOND_ROOT_NODES_MAX: Final = 256
"""Small networks are grown from every root, large ones from one only, to stay quick."""

_FORBIDDEN: Final = 1 << 60
_SLOW: Final = 1 << 50
"""Added to the depth of a node behind a slow pair, so that these are used last."""

Row: TypeAlias = NDArray[np.int64]


def grow(network: Network, caps: Sequence[int], budget: int) -> Parents | None:
    """Return the best tree grown from several roots, or None if growth failed from all.

    The tree keeps to ``caps`` and uses no pair slower than ``budget``. Each step attaches the node
    that comes out nearest to the root, without slow pairs if it can be, and among equals the one
    with the most room for children; never a leaf at the last free place. None does not mean that
    there is no such tree.
    """
    return min(
        _grown(network, caps, budget),
        key=lambda tree: (slow_edges(tree, network), min(eccentricities(tree, network.hop_us))),
        default=None,
    )


def grow_any(network: Network, caps: Sequence[int], budget: int) -> Parents | None:
    """Return the first tree that grows, or None: where only the budget is in question."""
    return next(_grown(network, caps, budget), None)


def _grown(network: Network, caps: Sequence[int], budget: int) -> Iterator[Parents]:
    penalty = _penalties(network, budget)
    for root in _roots(network, caps):
        tree = _Growth(network.hop_us, penalty, caps, root).run()
        if tree is not None:
            yield tree


def _penalties(network: Network, budget: int) -> Matrix:
    slow = network.slow_pair
    penalty: Matrix = np.where(slow > budget, _FORBIDDEN, np.where(slow > 0, _SLOW, 0))
    return penalty


def _roots(network: Network, caps: Sequence[int]) -> list[int]:
    """Return the nodes to start from: all, or the roomiest and the most central with room."""
    if len(network) <= ALL_ROOTS_NODES_MAX:
        return list(range(len(network)))
    reach = network.hop_us.sum(axis=1)
    ranks = range(len(network))
    roomiest = min(ranks, key=lambda node: (-caps[node], int(reach[node]), node))
    central = min(ranks, key=lambda node: (caps[node] < 2, int(reach[node]), node))
    if len(network) > SECOND_ROOT_NODES_MAX:
        return [roomiest]
    return sorted({roomiest, central})


class _Growth:
    """One growth from one root.

    ``_key`` holds, for each node outside, the least depth at which it could be attached (with the
    penalty of its pair), and ``_parent`` where. Both are kept up to date in one row operation per
    step; only nodes whose best place has just closed are looked at anew.
    """

    def __init__(self, hop_us: Matrix, penalty: Matrix, caps: Sequence[int], root: int) -> None:
        count = len(caps)
        self._step: Matrix = hop_us + penalty
        self._hop = hop_us
        self._caps: Row = np.array(caps, dtype=np.int64)
        self._room: Row = np.zeros(count, dtype=np.int64)
        self._depth: Row = np.zeros(count, dtype=np.int64)
        self._outside: NDArray[np.bool_] = np.ones(count, dtype=np.bool_)
        self._key: Row = np.full(count, _FORBIDDEN, dtype=np.int64)
        self._parent: Row = np.full(count, root, dtype=np.int64)
        self._places = int(self._caps[root])
        self._open(root, 0, self._places)

    def run(self) -> Parents | None:
        """Attach all nodes; None when one cannot be."""
        for left in range(len(self._caps) - 1, 0, -1):
            node = self._next(left)
            if node is None:
                return None
            self._attach(node)
        return tuple(int(parent) for parent in self._parent)

    def _next(self, left: int) -> int | None:
        fits = self._outside
        if self._places == 1 and left > 1:
            fits = fits & (self._caps > 1)
        candidates = np.flatnonzero(fits)
        if not candidates.size:
            return None
        keys = self._key[candidates]
        least = int(keys.min())
        if least >= _FORBIDDEN:
            return None
        nearest = candidates[keys == least]
        return int(nearest[np.argmax(self._caps[nearest])])

    def _attach(self, node: int) -> None:
        parent = int(self._parent[node])
        self._room[parent] -= 1
        self._places += int(self._caps[node]) - 2
        depth = int(self._depth[parent]) + int(self._hop[parent, node])
        self._open(node, depth, int(self._caps[node]) - 1)
        if not self._room[parent]:
            self._close(parent)

    def _open(self, node: int, depth: int, room: int) -> None:
        self._outside[node] = False
        self._depth[node] = depth
        self._room[node] = room
        if not room:
            return
        offer = self._step[node] + depth
        better = self._outside & (
            (offer < self._key) | ((offer == self._key) & (node < self._parent))
        )
        self._key[better] = offer[better]
        self._parent[better] = node

    def _close(self, node: int) -> None:
        orphans = np.flatnonzero(self._outside & (self._parent == node))
        if not orphans.size:
            return
        places = np.flatnonzero(self._room > 0)
        if not places.size:
            self._key[orphans] = _FORBIDDEN
            return
        offers = self._step[np.ix_(places, orphans)] + self._depth[places][:, None]
        best = offers.argmin(axis=0)
        self._parent[orphans] = places[best]
        self._key[orphans] = offers[best, np.arange(orphans.size)]
