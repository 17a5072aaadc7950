"""Contacts: dialling, heartbeats, gossip and link measuring.

Rules:

1. Of a pair of nodes the one with the smaller id dials; the other one does after a grace, and a
   newcomer always does, because nobody knows it yet.
2. A heartbeat goes to every connected peer each tick; it carries the echo that measures round
   trips.
3. A new connection first exchanges all that both know; later news is told a bounded number of
   times to a few peers a tick, and one full exchange in ``FULL_EXCHANGE_TICKS`` mends losses.
4. At most one probe is under way per node and tick, and none while an attempt runs.
5. What was measured of a node goes when the node does: of a lost peer what is half done, of one
   that is no member any more everything. A member takes no word of such a node from others, or
   they would tell each other of it for ever.
"""

from dataclasses import dataclass, field

from greedw_p2p.config import Member
from greedw_p2p.ids import NO_ENTRY, NO_STATE, EntryIndex, MemberId, NodeId
from greedw_p2p.limits import MEMBERS_MAX, TICK_US
from greedw_p2p.links.cell import LinkCell
from greedw_p2p.links.estimate import LinkEstimator
from greedw_p2p.links.probe import ProbeReceiver, ProbeSchedule
from greedw_p2p.membership.dissemination import TransmitQueue
from greedw_p2p.membership.heartbeat import Heartbeat
from greedw_p2p.membership.peers import Peer
from greedw_p2p.membership.rumour import Liveness
from greedw_p2p.node.context import Context
from greedw_p2p.node.effects import Dial
from greedw_p2p.wire.messages import CatchUp, Gossip, ProbeChunk

DIAL_GRACE_TICKS = 4
DIAL_BACKOFF_TICKS_MAX = 16
DIAL_TRIES_MAX = 10
"""Tries at a node that is no member; members are tried for ever."""

GOSSIP_FANOUT = 3
FULL_EXCHANGE_TICKS = 40
CELLS_PER_MESSAGE = 256


@dataclass(slots=True)
class _Target:
    """A node to be connected with, and when to try next."""

    member: Member
    next_us: int
    failures: int = 0


@dataclass(slots=True)
class _Clockwork:
    """Echo of one peer's clock: its newest stamp, and when it came in."""

    stamp_us: int = 0
    received_us: int = 0


@dataclass(slots=True)
class _Memory:
    targets: dict[NodeId, _Target] = field(default_factory=dict[NodeId, _Target])
    clocks: dict[MemberId, _Clockwork] = field(default_factory=dict[MemberId, _Clockwork])


class Contacts:
    """Keeps this node connected, heard and measured."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._memory = _Memory()
        self._estimator = LinkEstimator(context.me.node, context.me.incarnation)
        self._receiver = ProbeReceiver()
        self._schedule = ProbeSchedule(context.me.node)
        self._cell_news: TransmitQueue[tuple[str, str], LinkCell] = TransmitQueue()
        self._ticks = 0
        for member in context.boot.contacts:
            self._want(member)

    def tick(self, *, quiet: bool) -> None:
        """Do what each tick asks for; ``quiet`` allows a probe."""
        self._ticks += 1
        self._collect_targets()
        self._forget_strangers()
        self._forget_measurements()
        self._publish_cells()
        self._dial()
        self.send_heartbeats()
        self._spread_news()
        self._ask_for_entries()
        if quiet:
            self._probe()

    def connected(self, member: Member) -> None:
        """Exchange everything over a new connection."""
        context = self._context
        context.roster.saw(member)
        self._want(member)
        self._memory.targets[member.node].failures = 0
        context.out.send(member.id, self._heartbeat_for(member.id))
        self._tell_everything(member.id, answer=True)

    def disconnected(self, peer: MemberId) -> None:
        """Forget the clock that was read over the connection."""
        self._memory.clocks.pop(peer, None)

    def dial_failed(self, node: NodeId) -> None:
        """Wait longer before the next try."""
        target = self._memory.targets.get(node)
        if target is not None:
            target.failures += 1
            wait = min(DIAL_BACKOFF_TICKS_MAX, 1 << min(target.failures, 8))
            jitter_us = self._context.rng.randrange(TICK_US)
            target.next_us = self._context.now_us + wait * TICK_US + jitter_us

    def on_heartbeat(self, sender: MemberId, heartbeat: Heartbeat) -> None:
        """Take the round trip from the echo, and remember the stamp to echo."""
        now_us = self._context.now_us
        if heartbeat.echo_us:
            rtt_us = now_us - heartbeat.echo_us - heartbeat.held_us
            if rtt_us >= 0:
                self._estimator.add_rtt(sender.node, rtt_us, now_us)
        self._memory.clocks[sender] = _Clockwork(heartbeat.sent_us, now_us)

    def on_gossip(self, sender: MemberId, gossip: Gossip) -> None:
        """Merge what a peer knows, and answer if it asks."""
        context = self._context
        for member in context.roster.merge(gossip.rumours):
            self._want(member)
        for cell in context.links.merge(self._of_known_nodes(gossip.links)):
            self._cell_news.put((cell.writer, cell.peer), cell)
        if gossip.answer:
            self._tell_everything(sender, answer=False)

    def on_probe(self, sender: MemberId, chunk: ProbeChunk) -> None:
        """Time a probe's second half."""
        now_us = self._context.now_us
        sample = self._receiver.arrived(sender.node, chunk, now_us)
        if sample is not None:
            self._estimator.add_transfer(sender.node, sample.nbytes, sample.elapsed_us, now_us)

    def _publish_cells(self) -> None:
        for cell in self._context.links.merge(self._estimator.cells()):
            self._cell_news.put((cell.writer, cell.peer), cell)

    def _want(self, member: Member) -> None:
        """Take a node up as one to be connected with, at its newest address."""
        context = self._context
        if member.node == context.me.node:
            return
        target = self._memory.targets.get(member.node)
        if target is None:
            dials = context.me.node < member.node or not context.is_member
            grace_us = 0 if dials else DIAL_GRACE_TICKS * TICK_US
            self._memory.targets[member.node] = _Target(member, context.now_us + grace_us)
        elif target.member.incarnation < member.incarnation:
            target.member = member
            target.failures = 0

    def _collect_targets(self) -> None:
        """Want every member; forget strangers that never answer or have left."""
        config = self._context.config
        for member in () if config is None else config.members:
            self._want(member)
        for node, target in sorted(self._memory.targets.items()):
            if config is not None and config.find(node) is not None:
                continue
            rumour = self._context.roster.rumour_of(node)
            gone = rumour is not None and rumour.liveness >= Liveness.DEAD
            peer = self._context.peers.find(node)
            if peer is not None and peer.connected:
                continue
            if self._context.is_member and (gone or target.failures >= DIAL_TRIES_MAX):
                del self._memory.targets[node]
                self._estimator.forget(node)

    def _forget_strangers(self) -> None:
        """Keep the roster within one message; members and who is connected stay in it."""
        context = self._context
        config = context.config
        spare = len(context.roster) - MEMBERS_MAX
        for node in context.roster.least_alive_first() if spare > 0 else ():
            peer = context.peers.find(node)
            is_member = config is not None and config.find(node) is not None
            if is_member or (peer is not None and peer.connected):
                continue
            context.roster.forget(node)
            context.peers.forget(node)
            self._memory.targets.pop(node, None)
            spare -= 1
            if spare == 0:
                return

    def _forget_measurements(self) -> None:
        """Drop what is half done with lost peers, and now and then all of nodes that have gone."""
        for node in sorted(self._memory.targets):
            peer = self._context.peers.find(node)
            if peer is None or not peer.connected:
                self._receiver.forget(node)
                self._schedule.forget(node)
        if self._context.is_member and self._ticks % FULL_EXCHANGE_TICKS == 0:
            self._context.links.forget(self._context.links.nodes() - self._known_nodes())

    def _known_nodes(self) -> frozenset[NodeId]:
        return frozenset((*self._memory.targets, self._context.me.node))

    def _of_known_nodes(self, cells: tuple[LinkCell, ...]) -> tuple[LinkCell, ...]:
        """Return the cells to take in; a newcomer, which knows nobody yet, takes all."""
        if not self._context.is_member:
            return cells
        known = self._known_nodes()
        return tuple(cell for cell in cells if cell.writer in known and cell.peer in known)

    def _dial(self) -> None:
        context = self._context
        for node, target in sorted(self._memory.targets.items()):
            peer = context.peers.find(node)
            if (peer is not None and peer.connected) or context.now_us < target.next_us:
                continue
            # Counts as a failure until it succeeds, so that a lost answer is tried again too.
            self.dial_failed(node)
            context.out.emit(Dial(node, target.member.address))

    def send_heartbeats(self) -> None:
        """Tell every connected peer how this node is."""
        for peer in self._connected():
            self._context.out.send(peer.member.id, self._heartbeat_for(peer.member.id))

    def _heartbeat_for(self, peer: MemberId) -> Heartbeat:
        context = self._context
        ledger = context.ledger
        clock = self._memory.clocks.get(peer, _Clockwork())
        return Heartbeat(
            committed=EntryIndex(0) if ledger is None else ledger.index,
            entry_id=NO_ENTRY if ledger is None else ledger.entry_id,
            state=context.shown_state if context.state is not None else NO_STATE,
            deaf=() if ledger is None else context.peers.deaf_to(ledger.config),
            hears_quorum=context.hears_quorum,
            wants_in=not context.is_member and not context.leaving,
            leaving=context.leaving,
            sent_us=context.now_us,
            echo_us=clock.stamp_us,
            held_us=max(0, context.now_us - clock.received_us) if clock.stamp_us else 0,
        )

    def _spread_news(self) -> None:
        context = self._context
        connected = self._connected()
        if not connected:
            return
        if self._ticks % FULL_EXCHANGE_TICKS == 0:
            partner = connected[context.rng.randrange(len(connected))]
            self._tell_everything(partner.member.id, answer=True)
            return
        if not context.roster.has_news and not self._cell_news:
            return
        chosen = context.rng.sample(connected, min(GOSSIP_FANOUT, len(connected)))
        for peer in chosen:
            rumours = context.roster.news()
            cells = self._cell_news.take(CELLS_PER_MESSAGE, len(connected) + 1)
            if rumours or cells:
                context.out.send(peer.member.id, Gossip(rumours, cells, answer=False))

    def _tell_everything(self, to: MemberId, *, answer: bool) -> None:
        """Send all that is known, in messages of bounded size; only the last asks for an answer."""
        context = self._context
        cells = context.links.cells()
        pieces = [
            cells[start : start + CELLS_PER_MESSAGE]
            for start in range(0, len(cells), CELLS_PER_MESSAGE)
        ]
        *first, last = pieces or [()]
        for piece in first:
            context.out.send(to, Gossip((), piece, answer=False))
        context.out.send(to, Gossip(context.roster.everything(), last, answer))

    def _ask_for_entries(self) -> None:
        """Ask the peer that is furthest ahead for what this node lacks."""
        context = self._context
        mine = -1 if context.ledger is None else context.ledger.index
        ahead = [
            (peer.committed, peer.member.node, peer)
            for peer in self._connected()
            if peer.heartbeat is not None and peer.heartbeat.entry_id and peer.committed > mine
        ]
        if ahead:
            peer = max(ahead, key=lambda item: item[:2])[2]
            context.out.send(peer.member.id, CatchUp(EntryIndex(max(mine, 0)), fresh=mine < 0))

    def _probe(self) -> None:
        context = self._context
        peers = tuple(peer.member for peer in self._connected() if not peer.silent)
        nodes = tuple(member.node for member in peers)
        probe = self._schedule.due(nodes, context.links, context.now_us)
        if probe is None:
            return
        to = next(member.id for member in peers if member.node == probe.peer)
        for number in range(probe.pieces):
            context.out.send(to, ProbeChunk(probe.number, number, probe.pieces, probe.size))

    def _connected(self) -> list[Peer]:
        return [peer for peer in self._context.peers.all() if peer.connected]
