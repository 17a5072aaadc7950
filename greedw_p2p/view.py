"""The agreed view: what every node plans an entry from, folded from the log."""

from typing import Annotated

import msgspec

from greedw_p2p.ids import Counter, EntryIndexField, NodeIdField
from greedw_p2p.limits import MESSAGE_ITEMS_MAX
from greedw_p2p.links.cell import LinkCell
from greedw_p2p.record import Record, digest


class Speed(Record, frozen=True, order=True):
    """How fast a node computes, smoothed by the fold; the same integers on every node.

    ``unit_ns`` is nanoseconds per sample, at least 1; ``fixed_ns`` what a round costs before the
    first. ``outliers`` counts the last reports in a row that were far slower, and ``outlier_ns`` is
    the least of their nanoseconds per sample, 0 where there are none.
    """

    node: NodeIdField
    unit_ns: Counter
    fixed_ns: Counter
    outlier_ns: Counter
    outliers: Counter


class RoundReport(Record, frozen=True, order=True):
    """What a node tells of its last round; rides up with the reduce, comes back in the entry.

    ``units`` were computed in ``compute_us``, both 0 where nothing was trained (the time of an
    evaluation says nothing about a round's); ``fixed_us`` of it would have gone by for no unit at
    all, as calibrated when the job was loaded; ``wait_us`` is idle time for others, ``transfer_us``
    from the end of the own computation to the last byte of the result of the round before (0 in
    the first); ``sent_bytes`` over bulk connections in that round.
    """

    node: NodeIdField
    units: Counter
    compute_us: Counter
    fixed_us: Counter
    wait_us: Counter
    transfer_us: Counter
    sent_bytes: Counter


class Edge(Record, frozen=True, order=True):
    """A node of a tree and its parent; the root is its own parent."""

    node: NodeIdField
    parent: NodeIdField


class ViewDelta(Record, frozen=True):
    """What one entry adds to the view: measurements newer than the view's, and reports."""

    links: Annotated[tuple[LinkCell, ...], msgspec.Meta(max_length=MESSAGE_ITEMS_MAX)] = ()
    reports: Annotated[tuple[RoundReport, ...], msgspec.Meta(max_length=MESSAGE_ITEMS_MAX)] = ()


class View(Record, frozen=True):
    """The input of the plan of ``entry``: members, link costs, speeds, and decisions in force.

    All tuples are sorted, so that equal views have equal digests. ``speeds`` are the newest
    estimates, of nodes that have trained. ``basis`` are the speeds that shares follow: they are
    replaced by ``speeds`` only for a clear gain, and so is ``tree``, rooted where it prefers.
    """

    entry: EntryIndexField
    members: tuple[NodeIdField, ...]
    links: tuple[LinkCell, ...]
    speeds: tuple[Speed, ...]
    basis: tuple[Speed, ...]
    tree: tuple[Edge, ...]

    def __post_init__(self) -> None:
        if list(self.members) != sorted(set(self.members)):
            raise ValueError("the members of a view are not sorted, or one is listed twice")

    def digest(self) -> bytes:
        """Return the digest that every data stream of an attempt must name."""
        return digest(self)
