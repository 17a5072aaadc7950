"""Growing a tree under a budget, as in Prim's algorithm, with a limit on every node's degree."""

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from greedw_p2p.limits import MEMBERS_MAX
from greedw_p2p.plan.network import Matrix, Network
from greedw_p2p.plan.rooted import Parents, eccentricities, slow_edges

ATTACHED_NODES_MAX: Final = 100
"""Nodes to attach over all growths of one network: ten nodes are grown from every root, over fifty
from one only, so that a plan takes a few milliseconds."""

ATTACHED_NODES_MAX_ANY: Final = 64
"""The same where only the budget is in question, which is asked several times."""

_SLOW_US: Final = 1 << 44
"""Added to the depth of a node behind a slow pair, so that these are used last: more than a
thousand hops of the longest latency on the scale."""

_FORBIDDEN_US: Final = 1 << 50
_RANK_BITS: Final = 12
"""A place is one integer, to be compared at once: the depth, and below it the parent's rank."""

_NOWHERE: Final = _FORBIDDEN_US << _RANK_BITS
_RANK_MASK: Final = (1 << _RANK_BITS) - 1

assert MEMBERS_MAX <= 1 << _RANK_BITS

Row: TypeAlias = NDArray[np.int64]


def grow(network: Network, caps: Sequence[int], budget: int) -> Parents | None:
    """Return the best tree grown from several roots, or None if growth failed from all.

    The tree keeps to ``caps`` and uses no pair slower than ``budget``. Each step attaches the node
    that comes out nearest to the root, without slow pairs if it can be, and among equals the one
    with the most room for children; never a leaf at the last free place. None does not mean that
    there is no such tree.
    """
    return min(
        _grown(network, caps, budget, ATTACHED_NODES_MAX),
        key=lambda tree: (slow_edges(tree, network), min(eccentricities(tree, network.hop_us))),
        default=None,
    )


def grow_any(network: Network, caps: Sequence[int], budget: int) -> Parents | None:
    """Return the first tree that grows, or None: where only the budget is in question."""
    return next(_grown(network, caps, budget, ATTACHED_NODES_MAX_ANY), None)


def _grown(
    network: Network, caps: Sequence[int], budget: int, attached_max: int
) -> Iterator[Parents]:
    steps = (network.hop_us + _penalties(network, budget)) << _RANK_BITS
    hop_us: list[list[int]] = network.hop_us.tolist()
    for root in _roots(network, caps)[: max(attached_max // len(network), 1)]:
        tree = _Growth(hop_us, steps, caps, root).run()
        if tree is not None:
            yield tree


def _penalties(network: Network, budget: int) -> Matrix:
    slow = network.slow_pair
    penalty: Matrix = np.where(slow > budget, _FORBIDDEN_US, np.where(slow > 0, _SLOW_US, 0))
    return penalty


def _roots(network: Network, caps: Sequence[int]) -> list[int]:
    """Return the nodes to start from: the roomiest, then the most central ones with room."""
    count = len(network)
    reach = [int(total) for total in network.hop_us.sum(axis=1)]
    roomiest = min(range(count), key=lambda node: (-caps[node], reach[node], node))
    central = sorted(range(count), key=lambda node: (caps[node] < 2, reach[node], node))
    return [roomiest, *(node for node in central if node != roomiest)]


class _Growth:
    """One growth from one root.

    ``_place`` holds, for each node outside, the best place where it could be attached: the least
    depth (with the penalty of its pair), then the parent of the least rank. It is kept up to date
    in one row operation per step; only nodes whose place has just closed are looked at anew.
    """

    def __init__(
        self, hop_us: list[list[int]], steps: Matrix, caps: Sequence[int], root: int
    ) -> None:
        count = len(caps)
        self._hop = hop_us
        self._steps = steps
        self._caps = caps
        self._room = [0] * count
        self._depth = [0] * count
        self._outside: NDArray[np.bool_] = np.ones(count, dtype=np.bool_)
        self._roomy: NDArray[np.bool_] = np.array(caps) > 1
        self._place: Row = np.full(count, _NOWHERE | root, dtype=np.int64)
        self._places = self._caps[root]
        self._open(root, 0, self._places)

    def run(self) -> Parents | None:
        """Attach all nodes; None when one cannot be."""
        for left in range(len(self._caps) - 1, 0, -1):
            node = self._next(left)
            if node is None:
                return None
            self._attach(node)
        return tuple((self._place & _RANK_MASK).tolist())

    def _next(self, left: int) -> int | None:
        fits = self._outside
        if self._places == 1 and left > 1:
            fits = fits & self._roomy
        depths = np.where(fits, self._place, _NOWHERE) >> _RANK_BITS
        least = depths.min()
        if least >= _FORBIDDEN_US:
            return None
        nearest: list[int] = np.flatnonzero(depths == least).tolist()
        return max(nearest, key=self._caps.__getitem__)

    def _attach(self, node: int) -> None:
        parent = int(self._place[node]) & _RANK_MASK
        self._room[parent] -= 1
        self._places += self._caps[node] - 2
        depth = self._depth[parent] + self._hop[parent][node]
        self._open(node, depth, self._caps[node] - 1)
        if not self._room[parent]:
            self._close(parent)

    def _open(self, node: int, depth: int, room: int) -> None:
        self._outside[node] = False
        self._depth[node] = depth
        self._room[node] = room
        if room:
            offers = self._steps[node] + (depth << _RANK_BITS | node)
            np.minimum(self._place, offers, out=self._place, where=self._outside)

    def _close(self, node: int) -> None:
        orphans = np.flatnonzero(self._outside & ((self._place & _RANK_MASK) == node))
        if not orphans.size:
            return
        places = np.flatnonzero(self._room)
        if not places.size:
            self._place[orphans] = _NOWHERE | node
            return
        own = np.array([self._depth[rank] << _RANK_BITS | rank for rank in places.tolist()])
        self._place[orphans] = (self._steps[np.ix_(places, orphans)] + own[:, None]).min(axis=0)
