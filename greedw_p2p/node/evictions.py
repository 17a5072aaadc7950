"""Evictions: members that are gone for good, removed at an operator's word.

Rules:

1. Only a member that nobody hears can be evicted: the node that is asked does not hear it, and
   before it is proposed a quorum of the config says the same. A live member leaves by itself.
2. The leader proposes it. If the leader is the one that is gone, the node that was asked starts a
   ballot of its own: the operator's word takes the place of a timer.
3. What is removed is one life. A machine that comes back is a newcomer.
"""

from dataclasses import dataclass

from greedw_p2p.config import Config, Member
from greedw_p2p.ids import MemberId
from greedw_p2p.limits import TICK_US
from greedw_p2p.log.entry import Entry
from greedw_p2p.node.context import Context
from greedw_p2p.node.effects import Reply, Severity
from greedw_p2p.node.events import EvictMember
from greedw_p2p.wire.messages import Evict, Fault

ANSWER_WITHIN_US = 15_000_000
"""How long a request waits for a quorum to notice the loss, and for the entry."""

WANTED_TICKS = 8
"""How long a word counts at the leader; whoever was asked repeats it each tick."""


@dataclass(slots=True)
class _Request:
    """An operator's request, made here."""

    member: Member
    deadline_us: int


class Evictions:
    """Takes requests to evict, repeats them, and says whom the next entry should remove."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._requests: dict[int, _Request] = {}
        self._wanted_until_us: dict[MemberId, int] = {}

    def request(self, event: EvictMember) -> None:
        """Take an operator's request, or say why it cannot be."""
        member, fault = self._find(event.who)
        if member is None:
            self._context.out.emit(Reply(event.request, fault))
            return
        deadline_us = self._context.now_us + ANSWER_WITHIN_US
        self._requests[event.request] = _Request(member, deadline_us)
        self._context.out.note(
            Severity.WARNING, "eviction asked for", member=self._context.name_of(member.node)
        )
        self._repeat()

    def on_evict(self, message: Evict) -> None:
        """Take what another member's operator wants, for a while."""
        self._wanted_until_us[message.member] = self._context.now_us + WANTED_TICKS * TICK_US

    def tick(self) -> None:
        """Repeat requests; give up those that cannot be carried out."""
        context = self._context
        self._wanted_until_us = {
            member: until_us
            for member, until_us in self._wanted_until_us.items()
            if until_us > context.now_us
        }
        self._repeat()
        for request in sorted(self._requests):
            pending = self._requests[request]
            if context.now_us >= pending.deadline_us:
                del self._requests[request]
                context.out.emit(
                    Reply(request, self._why_not(pending.member), fault=Fault.UNREACHABLE)
                )

    def due(self) -> tuple[MemberId, ...]:
        """Return the members that an entry may remove now: wanted, and unheard by a quorum."""
        config = self._context.config
        if config is None:
            return ()
        return tuple(
            member
            for member in config.ids
            if member in self._wanted_until_us and config.is_quorum(self._deaf_to(config, member))
        )

    @property
    def takes_over(self) -> bool:
        """Tell whether this node must propose, because the leader is among those to be evicted."""
        leader = self._context.leader
        asked = any(pending.member.id == leader for pending in self._requests.values())
        return leader is not None and asked and leader in self.due()

    def committed(self, entry: Entry) -> None:
        """Answer the operators whose member is gone now."""
        for request in sorted(self._requests):
            if self._requests[request].member.id not in entry.config:
                del self._requests[request]
                self._context.out.emit(Reply(request))

    def _repeat(self) -> None:
        """Tell the leader, and remember here too: this node may have to act itself."""
        leader = self._context.leader
        for request in sorted(self._requests):
            message = Evict(self._requests[request].member.id)
            self.on_evict(message)
            if leader is not None and leader != self._context.id:
                self._context.out.send(leader, message)

    def _find(self, who: str) -> tuple[Member | None, str]:
        """Return the member that an operator means, or the reason why it cannot be evicted."""
        context = self._context
        config = context.config
        if config is None or not context.is_member:
            return None, "this node is no member itself"
        found = [
            member
            for member in config.members
            if who in (member.node, context.name_of(member.node))
        ]
        if len(found) != 1:
            names = ", ".join(context.name_of(member.node) for member in config.members)
            return None, f"no member is called {who}; the members are {names}"
        member = found[0]
        if member.id == context.id:
            return None, "a node does not evict itself; greedw leave takes it out"
        if not context.hears_quorum:
            return None, self._why_not(member)
        if context.peers.is_reachable(member.id):
            return None, f"{who} is alive and heard; run greedw leave there"
        return member, ""

    def _deaf_to(self, config: Config, member: MemberId) -> tuple[MemberId, ...]:
        """Return the members that say they do not hear ``member``, this node included."""
        peers = self._context.peers
        return tuple(
            voter
            for voter in config.ids
            if voter != member
            and peers.is_reachable(voter)
            and (
                not peers.is_reachable(member)
                if voter == self._context.id
                else self._says_deaf(voter, member)
            )
        )

    def _says_deaf(self, voter: MemberId, member: MemberId) -> bool:
        peer = self._context.peers.get(voter)
        return (
            peer is not None and peer.heartbeat is not None and member.node in peer.heartbeat.deaf
        )

    def _why_not(self, member: Member) -> str:
        context = self._context
        name = context.name_of(member.node)
        if not context.hears_quorum:
            return f"{name} cannot be evicted: this node does not hear a quorum of the members"
        return f"{name} was not evicted within 15 s: other members still hear it, or do not answer"
