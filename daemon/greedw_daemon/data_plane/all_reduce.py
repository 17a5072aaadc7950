"""One running all-reduce: the pure machine of an attempt, tied to memory and to links.

``greedw_p2p.reduction.attempt`` decides; this file moves the bytes. Chunks of children are received
into slots and summed into the result region, chunks of the result straight into their place, and
what is sent are views of the regions, never copies.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from greedw_daemon.data_plane.frames import AttemptFrames, figures_of, outcome_of, part_of
from greedw_daemon.data_plane.links import BulkLink, Verdict
from greedw_daemon.data_plane.order import AttemptOrder, Regions, bytes_of, cut, whole_vector
from greedw_p2p.errors import (
    MalformedFrameError,
    MalformedMessageError,
    PeerError,
    ViewMismatchError,
)
from greedw_p2p.ids import NO_CONTENT, ContentDigest, NodeId
from greedw_p2p.kernels.summation import divide, sum_parts
from greedw_p2p.links.cell import LinkCell
from greedw_p2p.log.entry import RoundOutcome
from greedw_p2p.node.events import AttemptFinished
from greedw_p2p.reduction import attempt
from greedw_p2p.reduction.attempt import Attempt, Figures, Part, Phase, Shape
from greedw_p2p.reduction.layout import ChunkSpan
from greedw_p2p.view import RoundReport
from greedw_p2p.wire.codec import encode
from greedw_p2p.wire.messages import (
    BulkMessage,
    Chunk,
    Contribution,
    PartSummary,
    ResultSummary,
    StreamOpen,
)

_NO_BODY: Final = memoryview(b"")


@dataclass(slots=True)
class _Lane:
    """What one neighbour sends in this attempt. ``child`` is its place, None for the parent."""

    child: int | None
    is_open: bool = False
    next_chunk: int = 0
    arriving: StreamOpen | PartSummary | ResultSummary | None = None
    """The frame that is coming in; None for a chunk."""


class AllReduce:
    """One attempt at this node, from its begin until it is finished or dropped."""

    def __init__(
        self,
        order: AttemptOrder,
        regions: Regions,
        slots: NDArray[np.float32],
        *,
        name_of: Callable[[NodeId], str],
        on_finished: Callable[["AllReduce", AttemptFinished], None],
        on_fault: Callable[["AllReduce", BulkLink | None, PeerError], None],
    ) -> None:
        elements = order.layout.elements
        self.order: Final = order
        self._name_of = name_of
        self._on_finished = on_finished
        self._on_fault = on_fault
        self._own = whole_vector(regions.own, elements)
        self._result = whole_vector(regions.result, elements)
        self._own_bytes = bytes_of(self._own)
        self._result_bytes = bytes_of(self._result)
        self._slots = slots
        self._slot_bytes = [[bytes_of(slot) for slot in child] for child in slots]
        self._spans: Final = order.layout.chunks(order.chunk_bytes)
        self._frames = AttemptFrames(order, self._spans)
        self._machine = Attempt(
            Shape(
                chunks=len(self._spans),
                children=len(order.children),
                is_root=order.parent is None,
                window_chunks=order.window_chunks,
                participants=order.participants,
                total_units=order.total_units,
            )
        )
        self._events: deque[tuple[attempt.Event, BulkLink | None]] = deque()
        self._is_draining = False
        self._lanes: dict[BulkLink, _Lane] = {}
        self._parent_link: BulkLink | None = None
        self._child_links: list[BulkLink | None] = [None] * len(order.children)
        self._sent_up = 0
        self._up_summary = b""
        self._hash = xxhash.xxh3_128()
        self._own_finished_us: int | None = None
        self._first_result_us: int | None = None
        self._finished_us: int | None = None

    # -- what the data plane asks ---------------------------------------------------------------

    @property
    def needs_parent(self) -> bool:
        """Tell whether there is a parent, but no link to it."""
        return self.order.parent is not None and self._parent_link is None

    @property
    def transfer_us(self) -> int:
        """From the end of the own computation to the end of the attempt."""
        return _elapsed(self._own_finished_us, self._finished_us)

    @property
    def wait_us(self) -> int:
        """From the end of the own computation until the first piece of the result was here."""
        return _elapsed(self._own_finished_us, self._first_result_us)

    def is_using(self, link: BulkLink) -> bool:
        """Tell whether the attempt depends on this link."""
        return link in self._lanes

    def phase(self) -> str:
        """Say what is waited for, for people."""
        waiting = self._machine.waiting()
        if self.needs_parent and waiting.phase is not Phase.COMPUTE:
            return f"{waiting.phase}: connecting to {self._name(self.order.parent)}"
        due = "the summary" if waiting.chunk is None else f"chunk {waiting.chunk}"
        match waiting.phase:
            case Phase.FINISHED:
                return "finished"
            case Phase.COMPUTE:
                return f"compute: waiting for {due} of this node"
            case Phase.REDUCE:
                names = ", ".join(self._name(self.order.children[i]) for i in waiting.children)
                return f"reduce: waiting for {due} of {names}"
            case Phase.BROADCAST:
                return f"broadcast: waiting for {due} of {self._name(self.order.parent)}"

    def blamed(self, child: int | None) -> NodeId:
        """Return the node to name for a sum that is not the round's."""
        return self.order.me.node if child is None else self.order.children[child]

    # -- own part -------------------------------------------------------------------------------

    def own_bucket_ready(self, bucket: int) -> None:
        """Let the chunks of ``bucket`` and of those before it go."""
        count = sum(1 for span in self._spans if span.bucket <= bucket)
        self._feed(attempt.OwnChunksReady(count))

    def own_finished(
        self,
        contribution: Contribution,
        outcome: RoundOutcome,
        report: RoundReport,
        links: Sequence[LinkCell],
    ) -> None:
        """Add the own figures; all buckets were ready before."""
        self._own_finished_us = _now_us()
        self._frames.carry((report,), links)
        self._feed(attempt.OwnFinished(part_of((contribution,), outcome)))

    # -- links ----------------------------------------------------------------------------------

    def use_parent_link(self, link: BulkLink) -> None:
        """Send up on this link, from the start: nothing has been taken from us before."""
        self._parent_link = link
        self._lanes[link] = _Lane(child=None)
        self._open_stream(link)
        for span in self._spans[: self._sent_up]:
            self._send_up(link, span)
        if self._up_summary:
            link.send(self._up_summary)

    def release(self, link: BulkLink) -> bool:
        """Forget a lost link; tell whether the attempt can go on without it.

        It can as long as the parent has not opened its stream on it: then nothing that was sent
        has been used, and all of it is still in its place, to be sent again on another link.
        """
        lane = self._lanes.pop(link, None)
        if lane is None:
            return True
        if lane.child is not None or lane.is_open:
            return False
        self._parent_link = None
        return True

    def due_arrived(self, link: BulkLink) -> memoryview | Verdict:
        """Return the place of the chunk that is due on this link, and has begun to come."""
        lane = self._lanes[link]
        span = self._spans[lane.next_chunk]
        if lane.child is None:
            if lane.next_chunk >= self._sent_up:
                raise PeerError(f"chunk {span.index} of the result came before it was summed here")
            return cut(self._result_bytes, span)
        if not self._machine.can_take(lane.child):
            return Verdict.HOLD
        slots = self._slot_bytes[lane.child]
        return slots[span.index % len(slots)][: span.nbytes]

    def announced(self, link: BulkLink, message: BulkMessage, body_bytes: int) -> memoryview:
        """Check any other frame of this attempt; it is taken in ``received``.

        Raises:
            PeerError: the plan does not allow this frame here.
        """
        if message.tree != self.order.tree:
            raise MalformedMessageError(f"tree {message.tree} has no streams in this attempt")
        lane = self._lanes.get(link)
        if isinstance(message, Chunk):
            raise self._wrong_chunk(lane, message, body_bytes)
        if body_bytes:
            raise MalformedFrameError(f"{type(message).__name__} with a body of {body_bytes} bytes")
        match message:
            case StreamOpen():
                lane = self._check_opening(link, lane, message)
            case PartSummary():
                self._check_closing(lane, from_child=True)
            case ResultSummary():
                self._check_closing(lane, from_child=False)
        assert lane is not None
        lane.arriving = message
        return _NO_BODY

    def received(self, link: BulkLink) -> None:
        """Take the frame that was announced last on this link."""
        lane = self._lanes[link]
        message, lane.arriving = lane.arriving, None
        match message:
            case None:
                self._take_chunk(link, lane)
            case StreamOpen():
                lane.is_open = True
                self._expect_chunk(link, lane)
                if lane.child is not None:
                    self._open_stream(link)
            case PartSummary():
                assert lane.child is not None
                self._frames.carry(message.reports, message.links)
                part = part_of(message.contributions, message.outcome)
                self._feed(attempt.ChildFinished(lane.child, part), link)
            case ResultSummary():
                self._take_result_summary(link, message)

    # -- frames in ------------------------------------------------------------------------------

    def _take_chunk(self, link: BulkLink, lane: _Lane) -> None:
        """Count the chunk that is whole now."""
        span = self._spans[lane.next_chunk]
        lane.next_chunk += 1
        self._expect_chunk(link, lane)
        if lane.child is not None:
            self._feed(attempt.ChildChunkArrived(lane.child), link)
            return
        self._note_result(span)
        self._feed(attempt.ResultChunkArrived(), link)

    def _expect_chunk(self, link: BulkLink, lane: _Lane) -> None:
        """Let the link know the head of the chunk that is due."""
        is_last = lane.next_chunk == len(self._spans)
        link.due = None if is_last else self._frames.chunk(self._spans[lane.next_chunk])

    def _take_result_summary(self, link: BulkLink, message: ResultSummary) -> None:
        """End here if the bytes received are those that the root made."""
        mine = self._digest()
        if message.digest != mine:
            error = PeerError(
                f"the result over the link from {self._name(link.peer)} has digest {mine.hex()},"
                f" the root made {message.digest.hex()}"
            )
            self._on_fault(self, link, error)
            return
        self._feed(attempt.ResultFinished(figures_of(message.outcome)), link)

    def _check_opening(self, link: BulkLink, lane: _Lane | None, message: StreamOpen) -> _Lane:
        """Check that the peer has this node's view and plan, and is a neighbour by them."""
        order, name = self.order, self._name(link.peer)
        if lane is not None and lane.is_open:
            raise MalformedMessageError("opened the same stream twice")
        is_same = message.view == order.view_digest and message.plan == order.plan_digest
        if lane is None and link.peer in order.children and not is_same:
            # The peer must find out as well, rather than wait for a result.
            self._open_stream(link)
        self._frames.check_opening(message, name)
        if lane is not None:
            return lane
        if link.peer not in order.children:
            raise ViewMismatchError(f"{name} opened a stream, but is no child by this node's plan")
        child = order.children.index(link.peer)
        if self._child_links[child] is not None:
            raise MalformedMessageError("opened the same stream on two connections")
        self._child_links[child] = link
        self._lanes[link] = lane = _Lane(child=child)
        return lane

    def _check_closing(self, lane: _Lane | None, *, from_child: bool) -> None:
        """Check that a summary comes from the right side and after all chunks."""
        if lane is None or not lane.is_open:
            raise MalformedMessageError("a summary came before its stream was opened")
        if (lane.child is not None) is not from_child:
            raise MalformedMessageError("a summary came from the wrong end of the edge")
        missing = len(self._spans) - lane.next_chunk
        if missing:
            raise MalformedMessageError(f"a summary came with {missing} chunks missing")

    def _wrong_chunk(self, lane: _Lane | None, message: Chunk, body_bytes: int) -> PeerError:
        """Explain why a chunk is not the one that is due."""
        came = f"chunk {message.chunk} of bucket {message.bucket}"
        if lane is None or not lane.is_open:
            return MalformedMessageError(f"{came} came before its stream was opened")
        if lane.next_chunk == len(self._spans):
            return MalformedMessageError(f"{came} came after the last chunk")
        span = self._spans[lane.next_chunk]
        if (message.bucket, message.chunk) == (span.bucket, span.number):
            if body_bytes == span.nbytes:
                return MalformedMessageError(f"the header of {came} is not in canonical form")
            return MalformedFrameError(
                f"{came} came with a body of {body_bytes} bytes, the plan says {span.nbytes}"
            )
        return MalformedMessageError(
            f"{came} came, chunk {span.number} of bucket {span.bucket} was due"
        )

    # -- the machine ----------------------------------------------------------------------------

    def _feed(self, event: attempt.Event, link: BulkLink | None = None) -> None:
        """Give an event to the machine and do what it says, one event after the other.

        An action may bring in the next event (a child that is read again has its summary waiting),
        so events queue up: the actions of one are done before the next is looked at.
        """
        self._events.append((event, link))
        if self._is_draining:
            return
        self._is_draining = True
        try:
            while self._events:
                self._step(*self._events.popleft())
        finally:
            self._is_draining = False

    def _step(self, event: attempt.Event, source: BulkLink | None) -> None:
        """Give one event to the machine and do what it says."""
        try:
            actions = self._machine.handle(event)
        except PeerError as error:
            self._events.clear()
            self._on_fault(self, source, error)
            return
        for action in actions:
            self._perform(action)

    def _perform(self, action: attempt.Action) -> None:
        """Carry out one action of the machine."""
        match action:
            case attempt.Combine(chunk):
                self._combine(self._spans[chunk])
            case attempt.SendUp(chunk):
                self._sent_up = chunk + 1
                if self._parent_link is not None:
                    self._send_up(self._parent_link, self._spans[chunk])
            case attempt.SendDown(chunk):
                span = self._spans[chunk]
                self._send_down(self._frames.chunk(span), cut(self._result_bytes, span))
            case attempt.ResumeChild(child):
                link = self._child_links[child]
                if link is not None:
                    link.retry()
            case attempt.CloseUp(part):
                self._up_summary = encode(self._frames.part_summary(part))
                if self._parent_link is not None:
                    self._parent_link.send(self._up_summary)
            case attempt.CloseDown(figures):
                self._send_down(self._frames.result_summary(figures, self._digest()))
            case attempt.Finish(figures, part):
                self._finish(figures, part)

    def _combine(self, span: ChunkSpan) -> None:
        """Sum one chunk into its place in the result; at the root, make it the result."""
        total = self._result[span.start : span.stop]
        size = span.stop - span.start
        parts = [slots[span.index % len(slots), :size] for slots in self._slots]
        sum_parts(total, self._own[span.start : span.stop], parts)
        if self.order.parent is None:
            divide(total, self.order.divisor)
            self._note_result(span)

    def _note_result(self, span: ChunkSpan) -> None:
        """Add a chunk of the result, whole and in its place, to the digest."""
        if self._first_result_us is None:
            self._first_result_us = _now_us()
        self._hash.update(cut(self._result_bytes, span))

    def _finish(self, figures: Figures, part: Part | None) -> None:
        """Tell that the result is whole."""
        self._finished_us = _now_us()
        if self._first_result_us is None:
            self._first_result_us = self._finished_us
        finished = AttemptFinished(
            self.order.index, self.order.ballot, self._digest(), outcome_of(figures)
        )
        if part is not None:
            summary = self._frames.part_summary(part)
            finished = AttemptFinished(
                self.order.index,
                self.order.ballot,
                finished.digest,
                finished.outcome,
                tuple(sorted(summary.contributions, key=lambda part: part.member)),
                summary.reports,
                summary.links,
            )
        self._on_finished(self, finished)

    # -- frames out -----------------------------------------------------------------------------

    def _open_stream(self, link: BulkLink) -> None:
        """Name all that both ends must share, before the first chunk."""
        link.set_send_buffer(self.order.send_buffer_bytes)
        link.send(self._frames.opening())

    def _send_up(self, link: BulkLink, span: ChunkSpan) -> None:
        """Send a chunk from where it is final: own at a leaf, summed at an inner node."""
        source = self._result_bytes if self.order.children else self._own_bytes
        link.send(self._frames.chunk(span), cut(source, span))

    def _send_down(self, head: bytes, body: memoryview | None = None) -> None:
        """Send a frame to every child. Each has its own queue: none waits for another."""
        for link in self._child_links:
            assert link is not None, "something was summed without this child"
            link.send(head, body)

    # -- small helpers --------------------------------------------------------------------------

    def _digest(self) -> ContentDigest:
        """Return the digest of the result so far; empty where nothing is summed."""
        return ContentDigest(self._hash.digest()) if self._spans else NO_CONTENT

    def _name(self, node: NodeId | None) -> str:
        """Return a neighbour's name for people."""
        return "nobody" if node is None else self._name_of(node)


def _elapsed(since_us: int | None, until_us: int | None) -> int:
    """Return the time between two moments; 0 if they came the other way round, or never."""
    return 0 if since_us is None or until_us is None else max(until_us - since_us, 0)


def _now_us() -> int:
    """Return a time that only differences are taken of."""
    return time.monotonic_ns() // 1000
