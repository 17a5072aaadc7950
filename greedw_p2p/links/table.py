"""The link table: everybody's published measurements, merged in any order to the same result."""

from collections.abc import Collection, Iterable
from typing import Final, TypeAlias

from greedw_p2p.ids import NodeId
from greedw_p2p.links.cell import CODE_UNKNOWN, LinkCell

LinkKey: TypeAlias = tuple[NodeId, NodeId]
"""Writer and peer."""


def _rank(cell: LinkCell) -> tuple[int, int, int, int]:
    """Order the words about one link.

    The codes decide between cells that a cloned writer made with one version: a total order keeps
    the merge commutative even then.
    """
    return cell.incarnation, cell.version, cell.latency, cell.cost


_NOTHING: Final = (-1, -1, CODE_UNKNOWN, CODE_UNKNOWN)
"""Ranks below every cell."""


class LinkTable:
    """Newest cell of each directed link. A join semilattice: merge takes the greater cell."""

    def __init__(self, cells: Iterable[LinkCell] = ()) -> None:
        self._cells: dict[LinkKey, LinkCell] = {}
        self.merge(cells)

    def merge(self, cells: Iterable[LinkCell]) -> tuple[LinkCell, ...]:
        """Take in cells; return those now in the table that were not before, sorted.

        Commutative, associative and idempotent.
        """
        changed: set[LinkKey] = set()
        for cell in cells:
            key = (cell.writer, cell.peer)
            held = self._cells.get(key)
            if held is None or _rank(cell) > _rank(held):
                self._cells[key] = cell
                changed.add(key)
        return tuple(self._cells[key] for key in sorted(changed))

    def get(self, *, writer: NodeId, peer: NodeId) -> LinkCell | None:
        """Return what ``writer`` measured of the link from ``peer`` to itself, if anything."""
        return self._cells.get((writer, peer))

    def cells(self) -> tuple[LinkCell, ...]:
        """Return all cells, sorted by writer and peer."""
        return tuple(self._cells[key] for key in sorted(self._cells))

    def nodes(self) -> frozenset[NodeId]:
        """Return all nodes at either end of a measured link."""
        return frozenset(node for key in self._cells for node in key)

    def newer_than(
        self, links: Iterable[LinkCell], members: Collection[NodeId] | None = None
    ) -> tuple[LinkCell, ...]:
        """Return the cells that ``links`` (a view's, a peer's) lacks or holds an older word of.

        Args:
            links: the cells to compare with.
            members: if given, only cells between these nodes count.
        """
        known = {(cell.writer, cell.peer): _rank(cell) for cell in links}
        wanted = None if members is None else frozenset(members)
        return tuple(
            cell
            for cell in self.cells()
            if (wanted is None or (cell.writer in wanted and cell.peer in wanted))
            and _rank(cell) > known.get((cell.writer, cell.peer), _NOTHING)
        )

    def forget(self, nodes: Collection[NodeId]) -> None:
        """Drop every cell to or from ``nodes``, which are members no more."""
        for key in [k for k in self._cells if k[0] in nodes or k[1] in nodes]:
            del self._cells[key]
