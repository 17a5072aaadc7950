"""The frames of one attempt: what this node sends, and what it lets a neighbour open."""

from collections.abc import Sequence
from typing import Final

import msgspec.msgpack

from greedw_daemon.data_plane.order import AttemptOrder
from greedw_p2p.errors import ViewMismatchError
from greedw_p2p.ids import ContentDigest, NodeId, short
from greedw_p2p.links.cell import LinkCell
from greedw_p2p.log.entry import RoundOutcome
from greedw_p2p.record import pack
from greedw_p2p.reduction.attempt import Figures, Part, UnitRange
from greedw_p2p.reduction.layout import ChunkSpan
from greedw_p2p.view import RoundReport
from greedw_p2p.wire.codec import KIND_OF, encode
from greedw_p2p.wire.framing import pack_prefix
from greedw_p2p.wire.messages import (
    Chunk,
    Contribution,
    PartSummary,
    ResultSummary,
    StreamOpen,
)

LINK_CELLS_MAX: Final = 2048
"""Measurements that one summary carries, so that its header stays within BULK_HEADER_BYTES_MAX.
What does not fit is not lost: a node offers a cell until a view has it."""

_encode: Final = msgspec.msgpack.Encoder().encode


class AttemptFrames:
    """Makes the frames of one attempt, each chunk's head only once."""

    def __init__(self, order: AttemptOrder, spans: Sequence[ChunkSpan]) -> None:
        self._order = order
        self._heads: list[bytes | None] = [None] * len(spans)
        # Only the last two fields differ between chunks. Zeros take a byte each in msgpack.
        first = Chunk(order.lineage, order.index, order.ballot, order.tree, 0, 0)
        self._chunk_header = pack(first)[:-2]
        self._participants = frozenset(member.node for member in order.participants)
        self._reports: dict[NodeId, RoundReport] = {}
        self._cells: set[LinkCell] = set()

    def carry(self, reports: Sequence[RoundReport], links: Sequence[LinkCell]) -> None:
        """Take reports and measurements along to whoever sums next.

        What does not come from a participant is dropped, so the summary cannot outgrow its frame.
        """
        for report in reports:
            if report.node in self._participants:
                self._reports.setdefault(report.node, report)
        self._cells.update(cell for cell in links if cell.writer in self._participants)

    def opening(self) -> bytes:
        """Return the frame that names all that both ends of an edge must share."""
        order = self._order
        message = StreamOpen(
            order.lineage,
            order.index,
            order.ballot,
            order.tree,
            order.view_digest,
            order.plan_digest,
        )
        return encode(message)

    def chunk(self, span: ChunkSpan) -> bytes:
        """Return the head of a chunk: what comes before its body, both up and down."""
        known = self._heads[span.index]
        if known is None:
            header = self._chunk_header + _encode(span.bucket) + _encode(span.number)
            known = pack_prefix(KIND_OF[Chunk], len(header), span.nbytes) + header
            self._heads[span.index] = known
        return known

    def part_summary(self, part: Part) -> PartSummary:
        """Return the message that closes the way up."""
        order = self._order
        return PartSummary(
            order.lineage,
            order.index,
            order.ballot,
            order.tree,
            tuple(Contribution(r.member, r.start, r.units) for r in part.ranges),
            outcome_of(part.figures),
            tuple(self._reports[node] for node in sorted(self._reports)),
            tuple(sorted(self._cells)[:LINK_CELLS_MAX]),
        )

    def result_summary(self, figures: Figures, digest: ContentDigest) -> bytes:
        """Return the frame that closes the way down."""
        order = self._order
        message = ResultSummary(
            order.lineage, order.index, order.ballot, order.tree, digest, outcome_of(figures)
        )
        return encode(message)

    def check_opening(self, message: StreamOpen, name: str) -> None:
        """Check that a neighbour planned the attempt as this node did.

        Raises:
            ViewMismatchError: another view, or another plan from the same view.
        """
        order = self._order
        if message.view != order.view_digest:
            raise ViewMismatchError(
                f"{name} planned entry {order.index} from view {short(message.view)}, this node"
                f" from {short(order.view_digest)}"
            )
        if message.plan != order.plan_digest:
            raise ViewMismatchError(
                f"{name} has plan {short(message.plan)} for entry {order.index}, this node has"
                f" {short(order.plan_digest)}"
            )


def part_of(contributions: Sequence[Contribution], outcome: RoundOutcome) -> Part:
    """Return the state machine's form of a summary."""
    ranges = tuple(UnitRange(c.member, c.start, c.units) for c in contributions)
    return Part(ranges, figures_of(outcome))


def figures_of(outcome: RoundOutcome) -> Figures:
    """Return the state machine's form of an outcome."""
    return Figures(outcome.samples, outcome.loss_sum, outcome.correct)


def outcome_of(figures: Figures) -> RoundOutcome:
    """Return the log's form of the state machine's figures."""
    return RoundOutcome(figures.samples, figures.loss_sum, figures.correct)
