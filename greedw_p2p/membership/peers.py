"""The peers as this node hears them: connections, heartbeats, silence.

A connection that ends is noticed at once; silence counts after ``SUSPECT_AFTER_TICKS``. Silence is
judged by this node's own clock, and time in which this node itself did not run is not silence.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from greedw_p2p.config import Config, Member
from greedw_p2p.ids import EntryIndex, MemberId, NodeId
from greedw_p2p.limits import SUSPECT_AFTER_TICKS, TICK_US
from greedw_p2p.membership.heartbeat import Heartbeat


class Condition(StrEnum):
    """How a peer looks from here."""

    ALIVE = "alive"
    SUSPECTED = "suspected"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Peer:
    """One life of another node, and its newest heartbeat."""

    member: Member
    connected: bool = False
    since_us: int = 0
    heard_us: int | None = None
    lost: str = ""
    heartbeat: Heartbeat | None = None
    silent: bool = field(default=False)
    has_left: bool = field(default=False)
    """It said that it was leaving, and then closed the connection."""

    @property
    def committed(self) -> EntryIndex:
        """Its newest committed entry, as it said; 0 before it has spoken."""
        return EntryIndex(0) if self.heartbeat is None else self.heartbeat.committed


class Peers:
    """All peers that this node has met, by node; the newest life of each."""

    def __init__(self, me: NodeId) -> None:
        self._me = me
        self._peers: dict[NodeId, Peer] = {}

    def connected(self, member: Member, now_us: int) -> bool:
        """Note an open connection; False if a later life of the node is known."""
        known = self._peers.get(member.node)
        if known is not None and known.member.incarnation > member.incarnation:
            return False
        if known is None or known.member.incarnation < member.incarnation:
            known = self._peers[member.node] = Peer(member)
        known.member = member
        known.connected = True
        known.since_us = known.heard_us = now_us
        known.silent = False
        known.has_left = False
        known.lost = ""
        return True

    def disconnected(self, peer: MemberId, reason: str) -> bool:
        """Note a closed connection; False if it was not of the life in question."""
        known = self.get(peer)
        if known is None or not known.connected:
            return False
        known.connected = False
        known.lost = reason
        known.has_left = known.heartbeat is not None and known.heartbeat.leaving
        known.heartbeat = None
        return True

    def forget(self, node: NodeId) -> None:
        """Forget a node that was met."""
        self._peers.pop(node, None)

    def heard(self, sender: MemberId, heartbeat: Heartbeat | None, now_us: int) -> None:
        """Note that a peer spoke."""
        known = self.get(sender)
        if known is None:
            return
        known.heard_us = now_us
        known.silent = False
        if heartbeat is not None:
            known.heartbeat = heartbeat

    def tick(self, now_us: int, lag_us: int) -> tuple[Peer, ...]:
        """Judge silence; return the peers that fell silent now.

        ``lag_us``, for which this node's own loop stood still, is given back to everybody.
        """
        fallen: list[Peer] = []
        for peer in self.all():
            if not peer.connected or peer.heard_us is None:
                continue
            if lag_us > TICK_US:
                peer.heard_us = min(now_us, peer.heard_us + lag_us)
            if not peer.silent and now_us - peer.heard_us > SUSPECT_AFTER_TICKS * TICK_US:
                peer.silent = True
                fallen.append(peer)
        return tuple(fallen)

    def all(self) -> tuple[Peer, ...]:
        """Return the peers, sorted by node."""
        return tuple(self._peers[node] for node in sorted(self._peers))

    def get(self, member: MemberId) -> Peer | None:
        """Return the peer that is exactly this life."""
        known = self._peers.get(member.node)
        return known if known is not None and known.member.id == member else None

    def find(self, node: NodeId) -> Peer | None:
        """Return the newest known life of a node."""
        return self._peers.get(node)

    def condition(self, member: MemberId) -> Condition:
        """Return how one life of a node looks from here; this node itself is alive."""
        if member.node == self._me:
            return Condition.ALIVE
        peer = self.get(member)
        if peer is None:
            newer = self._peers.get(member.node)
            return Condition.UNKNOWN if newer is None else Condition.FAILED
        if not peer.connected:
            return Condition.FAILED
        return Condition.SUSPECTED if peer.silent else Condition.ALIVE

    def is_reachable(self, member: MemberId) -> bool:
        """Tell whether this exact life is heard, and says that it hears us."""
        if member.node == self._me:
            return True
        peer = self.get(member)
        if peer is None or not peer.connected or peer.silent:
            return False
        return peer.heartbeat is None or self._me not in peer.heartbeat.deaf

    def hears_quorum(self, config: Config) -> bool:
        """Tell whether this node hears a quorum of the config both ways, itself included."""
        return config.is_quorum(tuple(m for m in config.ids if self.is_reachable(m)))

    def deaf_to(self, config: Config) -> tuple[NodeId, ...]:
        """Return the config's nodes that this one does not hear, sorted."""
        conditions = (Condition.ALIVE,)
        return tuple(sorted(m.node for m in config.ids if self.condition(m) not in conditions))
