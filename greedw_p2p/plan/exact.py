"""Exact search for the best tree of a few nodes: dynamic programming over sets of nodes.

A set of nodes is a bit mask. The tree over a set rooted at r, whose root has at most k children, is
the best way to cut off one child's subtree, the one that holds the set's smallest other node, and
to build the rest with k - 1 children. Three to the power of N steps: for a handful of nodes only.
"""

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from greedw_p2p.plan.network import Network
from greedw_p2p.plan.rooted import Parents

EXACT_NODES_MAX: Final = 6
"""729 pairs of sets, 2 ms. It grows more than threefold with each node, and the daemon's loop waits
for it: seven would take 5 ms, eight up to 40 on a busy host."""


def _splits(members: int) -> Iterator[int]:
    """Yield the subsets of ``members`` that hold its smallest one."""
    smallest = members & -members
    others = members ^ smallest
    subset = others
    while True:
        yield subset | smallest
        if not subset:
            return
        subset = (subset - 1) & others


def _allowed(network: Network, budget: int) -> list[int]:
    """Return for each node the mask of nodes that it may be joined with under the budget."""
    count = len(network)
    return [
        sum(
            1 << other
            for other in range(count)
            if other != node and network.slow_pair[node, other] <= budget
        )
        for node in range(count)
    ]


def is_feasible(network: Network, caps: Sequence[int], budget: int) -> bool:
    """Tell whether a spanning tree keeps to ``caps`` and uses no pair slower than ``budget``."""
    count = len(network)
    allowed = _allowed(network, budget)
    too_many = 1 << 30
    fewest = [[too_many] * count for _ in range(1 << count)]
    # Mask of the nodes under which a set can hang as one child's subtree.
    heads = [0] * (1 << count)
    for members in range(1, 1 << count):
        for root in range(count):
            if not members >> root & 1:
                continue
            rest = members ^ (1 << root)
            fewest[members][root] = (
                min(
                    (
                        fewest[members ^ subtree][root] + 1
                        for subtree in _splits(rest)
                        if heads[subtree] & allowed[root]
                    ),
                    default=too_many,
                )
                if rest
                else 0
            )
            if fewest[members][root] < caps[root]:
                heads[members] |= 1 << root
    return any(fewest[-1][root] <= caps[root] for root in range(count))


_Value: TypeAlias = tuple[int, int]
"""Slow pairs in use, then depth in microseconds: what to minimise, in this order."""

_Choice: TypeAlias = tuple[int, int]
"""The subtree cut off (a mask) and its root."""


class _Search:
    """Best value and choice for each (set, root, most children)."""

    def __init__(self, network: Network, caps: Sequence[int], budget: int) -> None:
        self._count = len(network)
        self._caps = caps
        self._allowed = _allowed(network, budget)
        self._hop = [[int(us) for us in row] for row in network.hop_us]
        self._slow = [[int(cost > 0) for cost in row] for row in network.slow_pair]
        self._memory: dict[tuple[int, int, int], tuple[_Value, _Choice] | None] = {}

    def best(self, members: int, root: int, children: int) -> _Value | None:
        """Return the value of the best tree over ``members``, None if there is none."""
        if members == 1 << root:
            return 0, 0
        if not children:
            return None
        key = (members, root, children)
        if key not in self._memory:
            self._memory[key] = self._search(members, root, children)
        found = self._memory[key]
        return None if found is None else found[0]

    def _search(self, members: int, root: int, children: int) -> tuple[_Value, _Choice] | None:
        found: list[tuple[_Value, _Choice]] = []
        for subtree in _splits(members ^ (1 << root)):
            rest = self.best(members ^ subtree, root, children - 1)
            if rest is None:
                continue
            for head in range(self._count):
                if not subtree & self._allowed[root] & (1 << head):
                    continue
                below = self.best(subtree, head, self._room(subtree, self._caps[head] - 1))
                if below is not None:
                    value = (
                        rest[0] + below[0] + self._slow[root][head],
                        max(rest[1], below[1] + self._hop[root][head]),
                    )
                    found.append((value, (subtree, head)))
        return min(found, default=None)

    def _room(self, members: int, children: int) -> int:
        """Return a cap on children that is never looser than needed, so that memory is shared."""
        return min(children, members.bit_count() - 1)

    def tree(self) -> Parents | None:
        """Return the best tree over all nodes from its best root, None if there is none."""
        everyone = (1 << self._count) - 1
        roots: list[tuple[_Value, int]] = []
        for root in range(self._count):
            value = self.best(everyone, root, self._room(everyone, self._caps[root]))
            if value is not None:
                roots.append((value, root))
        if not roots:
            return None
        parents = [0] * self._count
        _, root = min(roots)
        parents[root] = root
        self._write(parents, everyone, root, self._room(everyone, self._caps[root]))
        return tuple(parents)

    def _write(self, parents: list[int], members: int, root: int, children: int) -> None:
        while members != 1 << root:
            found = self._memory[members, root, children]
            assert found is not None, "only trees that exist are written"
            subtree, head = found[1]
            parents[head] = root
            self._write(parents, subtree, head, self._room(subtree, self._caps[head] - 1))
            members ^= subtree
            children -= 1


def best_tree(network: Network, caps: Sequence[int], budget: int) -> Parents | None:
    """Return the tree within ``caps`` and ``budget`` with fewest slow pairs, then least depth."""
    return _Search(network, caps, budget).tree()
