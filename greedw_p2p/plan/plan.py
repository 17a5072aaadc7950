"""A plan: who sums for whom, who computes what, and in which pieces the bytes travel."""

from greedw_p2p.ids import Counter, EntryIndexField, NodeId, NodeIdField
from greedw_p2p.record import Record, digest
from greedw_p2p.view import Edge


class Quota(Record, frozen=True, order=True):
    """A node's share of a round, in work units."""

    node: NodeIdField
    units: Counter


class Tree(Record, frozen=True):
    """A rooted spanning tree of the participants; ``edges`` sorted by node, root included."""

    root: NodeIdField
    edges: tuple[Edge, ...]

    def parent_of(self, node: NodeId) -> NodeId | None:
        """Return the parent of ``node``, None for the root."""
        parent = next(edge.parent for edge in self.edges if edge.node == node)
        return None if parent == node else parent

    def children_of(self, node: NodeId) -> tuple[NodeId, ...]:
        """Return the children in the order in which their sums are added."""
        return tuple(e.node for e in self.edges if e.parent == node and e.node != node)

    def neighbours_of(self, node: NodeId) -> tuple[NodeId, ...]:
        """Return parent, if any, and children."""
        parent = self.parent_of(node)
        return (() if parent is None else (parent,)) + self.children_of(node)


class Plan(Record, frozen=True):
    """The plan of one attempt of an entry.

    ``trees`` has one tree per stripe (one for now); tree 0 is rooted at the leader. ``quotas``
    are sorted by node and their sum is the round's number of units; a node's units are a run of
    the round's, in that order. ``predicted_ns`` is the time of one all-reduce by the view's
    costs, ``bound_ns`` what no tree can beat.
    """

    entry: EntryIndexField
    view_digest: bytes
    trees: tuple[Tree, ...]
    quotas: tuple[Quota, ...]
    chunk_bytes: Counter
    window_chunks: Counter
    send_buffer_bytes: Counter
    predicted_ns: Counter
    bound_ns: Counter

    @property
    def tree(self) -> Tree:
        """Tree 0."""
        return self.trees[0]

    def digest(self) -> bytes:
        """Return the digest that START names, so that a differing plan is found at once."""
        return digest(self)

    def units_of(self, node: NodeId) -> tuple[int, int]:
        """Return (start, count) of a node's units within the round's."""
        start = 0
        for quota in self.quotas:
            if quota.node == node:
                return start, quota.units
            start += quota.units
        return start, 0
