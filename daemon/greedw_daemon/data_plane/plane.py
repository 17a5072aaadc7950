"""The data plane of a node: its bulk connections, and the attempt that uses them.

Rules
-----

1. At most one attempt runs. Attempts of a lineage are ordered by (entry, ballot); beginning one
   ends whatever ran before.
2. A frame says which attempt it belongs to. Frames of an attempt that ended here, or was passed
   over, are read and forgotten; frames of one that has not begun here stay unread in the socket
   until it does. So a neighbour may be ahead or behind without harm, at no cost in memory.
3. The child dials, unless a connection to its parent is open already, whoever opened it. A parent
   answers on the connection on which the child's stream was opened. Connections outlive attempts.
4. Every attempt ends: finished, broken (told once, with the peer and the phase), cancelled, or
   replaced. What a peer does wrong never raises into the caller.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from greedw_daemon.data_plane.all_reduce import AllReduce
from greedw_daemon.data_plane.links import BulkLink, Verdict
from greedw_daemon.data_plane.order import AttemptKey, AttemptOrder, Regions, slot_memory
from greedw_daemon.log_setup import get_logger
from greedw_daemon.tasks import TaskSet
from greedw_p2p.errors import ContributionError, PeerError, ViewMismatchError
from greedw_p2p.ids import Ballot, EntryIndex, LineageId, MemberId, NodeId
from greedw_p2p.links.cell import LinkCell
from greedw_p2p.log.entry import RoundOutcome
from greedw_p2p.node.events import AttemptBroken, AttemptFinished
from greedw_p2p.view import RoundReport
from greedw_p2p.wire.codec import BULK_TYPES, decode
from greedw_p2p.wire.messages import BulkMessage, Contribution

__all__ = ["AttemptOrder", "DataPlane", "Regions"]

log = get_logger()

DIAL_DEADLINE_S: Final = 4.0
"""After this the attempt is broken: a peer must be missed within five seconds."""

DIAL_PAUSE_S: Final = 0.05
"""Before the second try; doubled each time, up to DIAL_PAUSE_S_MAX."""

DIAL_PAUSE_S_MAX: Final = 0.8

REDIALS_MAX: Final = 3
"""Times that one attempt may lose a fresh connection to its parent and seek another."""

CLOSE_TIMEOUT_S: Final = 1.0


class DataPlane:
    """Sums up the tree and spreads the result, one attempt at a time.

    ``dial`` opens a bulk connection to a node for a tree, does the handshake and returns the
    transport with reading paused. The callbacks run in the event loop and may call back at once.
    """

    def __init__(
        self,
        *,
        me: MemberId,
        dial: Callable[[NodeId, int], Awaitable[asyncio.Transport]],
        name_of: Callable[[NodeId], str],
        on_finished: Callable[[AttemptFinished], None],
        on_broken: Callable[[AttemptBroken], None],
    ) -> None:
        self._me = me
        self._dial = dial
        self._name_of = name_of
        self._on_finished = on_finished
        self._on_broken = on_broken
        self._links: dict[NodeId, list[BulkLink]] = {}
        self._running: AllReduce | None = None
        self._lineage: LineageId | None = None
        self._old_lineages: tuple[LineageId, ...] = ()
        self._newest: AttemptKey | None = None
        self._slots: NDArray[np.float32] | None = None
        self._seeking: asyncio.Task[None] | None = None
        self._tasks = TaskSet()
        self._redials = 0
        self._is_closing = False
        self._sent_by_lost_links = 0
        self._sent_before = 0
        self._last_sent_bytes = 0
        self._last_transfer_us = 0
        self._last_wait_us = 0

    # -- attempts -------------------------------------------------------------------------------

    def begin(self, order: AttemptOrder, regions: Regions) -> None:
        """Take part in an attempt from now on; it must be newer than all before it."""
        if self._is_closing:
            return
        assert order.me == self._me
        self._move_to(order.lineage)
        assert self._newest is None or order.key > self._newest, f"{order.key} is not newer"
        self._end()
        self._newest = order.key
        self._redials = 0
        self._slots = slot_memory(order, self._slots)
        self._running = AllReduce(
            order,
            regions,
            self._slots,
            name_of=self._name_of,
            on_finished=self._finished,
            on_fault=self._faulted,
        )
        self._find_parent(self._running)
        self._retry_all()

    def own_bucket_ready(self, index: EntryIndex, ballot: Ballot, bucket: int) -> None:
        """Let a bucket of the own sums go up; ignored unless that attempt runs."""
        running = self._run_of(index, ballot)
        if running is not None:
            running.own_bucket_ready(bucket)

    def own_finished(
        self,
        index: EntryIndex,
        ballot: Ballot,
        contribution: Contribution,
        outcome: RoundOutcome,
        report: RoundReport,
        links: Sequence[LinkCell],
    ) -> None:
        """Add the own figures, after the last bucket; ignored unless that attempt runs."""
        running = self._run_of(index, ballot)
        if running is not None:
            running.own_finished(contribution, outcome, report, links)

    def cancel(self, index: EntryIndex, ballot: Ballot) -> None:
        """End the attempt if it runs. Nobody is told; what peers still send is forgotten."""
        if self._run_of(index, ballot) is not None:
            self._end()
            self._retry_all()

    def phase(self) -> str:
        """Say what the running attempt waits for, for people."""
        return "idle" if self._running is None else self._running.phase()

    def last_transfer_us(self) -> int:
        """From the end of the own computation to the end of the attempt that finished last."""
        return self._last_transfer_us

    def last_wait_us(self) -> int:
        """The part of it in which nothing of the result had come yet: others were computing."""
        return self._last_wait_us

    @property
    def sent_bytes(self) -> int:
        """Bytes sent for the attempt that finished last, with those of attempts lost before it."""
        return self._last_sent_bytes

    # -- connections ----------------------------------------------------------------------------

    def adopt(self, member: MemberId, transport: asyncio.Transport) -> None:
        """Take over an accepted bulk connection: handshake done, reading paused.

        Who dials has no other connection to us that works, so those that are left here are dead
        ends. A dead end does not show while its reading is paused, but its stream, opened once
        more on the new connection, would be taken for the real one.
        """
        if self._is_closing:
            transport.abort()
            return
        running = self._running
        for old in tuple(self._links.get(member.node, ())):
            if running is None or not running.is_using(old):
                old.drop(PeerError("the peer opened another connection"))
        self._add_link(member.node, transport)
        if running is not None and running.order.parent == member.node:
            self._find_parent(running)

    async def close(self) -> None:
        """End the attempt, send what is queued, close every connection."""
        self._is_closing = True
        self._end()
        links = [link for peer in sorted(self._links) for link in self._links[peer]]
        self._links.clear()
        await asyncio.gather(*(link.close(CLOSE_TIMEOUT_S) for link in links))
        await self._tasks.close()

    # -- LinkOwner ------------------------------------------------------------------------------

    def due_arrived(self, link: BulkLink) -> memoryview | Verdict:
        """Say where the chunk goes that an attempt expects next on this link."""
        assert self._running is not None, "nothing is due when no attempt runs"
        return self._running.due_arrived(link)

    def frame_announced(
        self, link: BulkLink, kind: int, header: bytes, body_bytes: int
    ) -> memoryview | Verdict:
        """Say where any other frame's body goes."""
        running = self._running
        message = cast("BulkMessage", decode(kind, header, BULK_TYPES))
        verdict = self._verdict_on(message)
        if verdict is not None:
            return verdict
        assert running is not None
        try:
            return running.announced(link, message, body_bytes)
        except ViewMismatchError as error:
            # The peer speaks properly and may be right: it is the attempt that is lost.
            self._break(running, link.peer, str(error))
            return Verdict.SKIP

    def frame_received(self, link: BulkLink) -> None:
        """Pass on that the announced frame is whole."""
        assert self._running is not None, "the frame was to be skipped when the attempt ended"
        self._running.received(link)

    def link_lost(self, link: BulkLink, reason: str) -> None:
        """Drop a connection; the attempt breaks if it depends on it."""
        self._sent_by_lost_links += link.sent_bytes
        kept = [other for other in self._links.get(link.peer, ()) if other is not link]
        if kept:
            self._links[link.peer] = kept
        else:
            self._links.pop(link.peer, None)
        running = self._running
        if running is None or not running.is_using(link):
            log.debug("bulk link closed", peer=self._name_of(link.peer), reason=reason)
            return
        phase = running.phase()
        if running.release(link):
            self._redials += 1
            if self._redials <= REDIALS_MAX:
                self._find_parent(running)
                return
        self._break(running, link.peer, reason, phase)

    # -- inside ---------------------------------------------------------------------------------

    def _move_to(self, lineage: LineageId) -> None:
        """Note the lineage of the attempts to come; attempts of older ones are over."""
        if lineage == self._lineage:
            return
        if self._lineage is not None:
            self._old_lineages += (self._lineage,)
        self._lineage, self._newest = lineage, None

    def _verdict_on(self, message: BulkMessage) -> Verdict | None:
        """Tell a frame of the running attempt (None) from those of older and of newer ones."""
        if message.lineage != self._lineage:
            return Verdict.SKIP if message.lineage in self._old_lineages else Verdict.HOLD
        key = message.index, message.ballot
        if self._running is not None and key == self._running.order.key:
            return None
        return Verdict.HOLD if self._newest is None or key > self._newest else Verdict.SKIP

    def _run_of(self, index: EntryIndex, ballot: Ballot) -> AllReduce | None:
        """Return the running attempt if it is this one."""
        running = self._running
        return running if running is not None and running.order.key == (index, ballot) else None

    def _finished(self, running: AllReduce, finished: AttemptFinished) -> None:
        """Note the figures and tell that the result is whole."""
        if running is not self._running:
            return
        self._end()
        self._last_transfer_us = running.transfer_us
        self._last_wait_us = running.wait_us
        sent = self._sent_by_lost_links + sum(
            link.sent_bytes for links in self._links.values() for link in links
        )
        self._last_sent_bytes, self._sent_before = sent - self._sent_before, sent
        self._on_finished(finished)

    def _faulted(self, running: AllReduce, link: BulkLink | None, error: PeerError) -> None:
        """End an attempt in which a peer did what the plan does not allow."""
        if running is not self._running:
            return
        if isinstance(error, ContributionError):
            self._break(running, running.blamed(error.child), str(error))
        else:
            assert link is not None, f"nobody to blame for: {error}"
            link.drop(error)

    def _break(
        self, running: AllReduce, peer: NodeId, reason: str, phase: str | None = None
    ) -> None:
        """End the running attempt and tell whom it broke on, and in which phase."""
        index, ballot = running.order.key
        phase = running.phase() if phase is None else phase
        self._end()
        log.warning(
            "attempt broken",
            entry=index,
            ballot=ballot.number,
            peer=self._name_of(peer),
            phase=phase,
            reason=reason,
        )
        self._on_broken(AttemptBroken(index, ballot, peer, phase, reason))
        self._retry_all()

    def _end(self) -> None:
        """Stop the running attempt, if any. Nothing that comes in reaches its memory any more."""
        self._running = None
        self._stop_seeking()
        for links in self._links.values():
            for link in links:
                link.forget()

    def _retry_all(self) -> None:
        """Look again at every frame that is held: what it belongs to may have begun or ended."""
        for peer in sorted(self._links):
            for link in tuple(self._links.get(peer, ())):
                link.retry()

    # -- the way to the parent ------------------------------------------------------------------

    def _find_parent(self, running: AllReduce) -> None:
        """Give the attempt a link to its parent: one that is open, or else dial."""
        parent = running.order.parent
        if parent is None or not running.needs_parent:
            return
        link = next((link for link in self._links.get(parent, ()) if link.is_open), None)
        if link is not None:
            self._stop_seeking()
            running.use_parent_link(link)
        elif self._seeking is None:
            self._seeking = self._tasks.start(self._seek(running, parent), "seek parent")

    def _stop_seeking(self) -> None:
        """Give up dialling."""
        if self._seeking is not None:
            self._seeking.cancel()
            self._seeking = None

    async def _seek(self, running: AllReduce, parent: NodeId) -> None:
        """Dial the parent until it answers or the time is over; then the attempt is broken."""
        failures: list[str] = []
        try:
            async with asyncio.timeout(DIAL_DEADLINE_S):
                transport = await self._dial_until_answered(parent, running.order.tree, failures)
        except TimeoutError:
            self._seeking = None
            failure = failures[-1] if failures else "no answer"
            reason = f"no bulk connection within {DIAL_DEADLINE_S:g} s: {failure}"
            self._break(running, parent, reason, f"connecting to {self._name_of(parent)}")
            return
        self._seeking = None
        self._add_link(parent, transport)
        self._find_parent(running)

    async def _dial_until_answered(
        self, parent: NodeId, tree: int, failures: list[str]
    ) -> asyncio.Transport:
        """Dial again and again, with growing pauses; note in ``failures`` what went wrong."""
        pause_s = DIAL_PAUSE_S
        while True:
            try:
                return await self._dial(parent, tree)
            except (OSError, PeerError) as error:
                failures.append(str(error) or type(error).__name__)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, DIAL_PAUSE_S_MAX)

    def _add_link(self, peer: NodeId, transport: asyncio.Transport) -> None:
        """Keep a connection and read what comes."""
        link = BulkLink(peer, self)
        self._links.setdefault(peer, []).append(link)
        link.attach(transport)
