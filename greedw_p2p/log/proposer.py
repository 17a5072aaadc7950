"""The proposer of one entry: one plan and at most one value for each ballot it starts.

Rules:

1. Ballot 0 may be started only by the leader that the entry before named, and needs no promise.
2. Every other ballot is above all this node has used or been refused for in this entry, and waits
   for promises of a quorum.
3. After the promises, a value accepted at the highest ballot among them is proposed unchanged, to
   the last byte; only if there is none may the plan of this ballot go on.
4. One ballot has one plan (an attempt or a change of the config) and one value.
5. Acknowledgements count by exact member, for the exact ballot, against a quorum of the config
   that holds at this entry: not the next config, not the participants.
"""

from dataclasses import dataclass
from enum import Enum

from greedw_p2p.config import Config
from greedw_p2p.ids import Ballot, MemberId, NodeId
from greedw_p2p.log.entry import Entry


class Phase(Enum):
    """Where the present ballot stands."""

    IDLE = "idle"
    PREPARING = "preparing"
    OPEN = "open"
    """The ballot may choose its value; an attempt may be running."""

    ACCEPTING = "accepting"


@dataclass(frozen=True, slots=True)
class Promised:
    """One member's promise, with what it had accepted."""

    ballot: Ballot | None
    entry: Entry | None


class Proposer:
    """Ballots that this node owns for one entry."""

    def __init__(self, me: NodeId, config: Config, leader: NodeId) -> None:
        self._me = me
        self._config = config
        self._leader = leader
        self._floor: Ballot | None = None
        self._promises: dict[MemberId, Promised] = {}
        self._acks: set[MemberId] = set()
        self.ballot: Ballot | None = None
        self.phase = Phase.IDLE
        self.value: Entry | None = None
        self.holder: NodeId = me
        """Who has the bytes of the value: whoever accepted it, for a value that was found."""

    def refused(self, promised: Ballot) -> None:
        """Remember a ballot that somebody has promised: the next own one must be higher."""
        if self._floor is None or promised > self._floor:
            self._floor = promised
        if self.ballot is not None and promised > self.ballot and self.phase is not Phase.ACCEPTING:
            self.phase = Phase.IDLE

    def can_lead(self) -> bool:
        """Tell whether ballot 0 is this node's and has not been used, nor anything above it."""
        return self._leader == self._me and self.ballot is None and self._floor is None

    def start_leading(self) -> Ballot:
        """Start ballot 0."""
        assert self.can_lead(), "ballot 0 is started once, by the leader"
        self.ballot = Ballot(0, self._me)
        self.phase = Phase.OPEN
        return self.ballot

    def start_higher(self, promised: Ballot | None) -> Ballot:
        """Start a ballot above all that was used or promised here; it waits for promises."""
        known = [b.number for b in (self.ballot, self._floor, promised) if b is not None]
        ballot = Ballot(max([0, *known]) + 1, self._me)
        assert self.ballot is None or ballot > self.ballot, "a ballot is never started twice"
        self.ballot = ballot
        self.phase = Phase.PREPARING
        self.value = None
        self.holder = self._me
        self._promises = {}
        self._acks = set()
        return ballot

    def on_promise(self, sender: MemberId, ballot: Ballot, promised: Promised) -> bool:
        """Count a promise; True when it completes the quorum.

        After that ``value`` is what must be proposed, or None if the plan may go on.
        """
        if self.phase is not Phase.PREPARING or ballot != self.ballot:
            return False
        if sender not in self._config:
            return False
        self._promises[sender] = promised
        if not self._config.is_quorum(self._promises):
            return False
        self.phase = Phase.OPEN
        self.value, self.holder = self._value_found()
        return True

    def propose(self, entry: Entry) -> None:
        """Fix the value of this ballot."""
        assert self.phase is Phase.OPEN, "a value is proposed once a ballot is open, and once"
        assert self.value is None or self.value == entry, "an accepted value is proposed unchanged"
        self.value = entry
        self.phase = Phase.ACCEPTING

    def on_ack(self, sender: MemberId, ballot: Ballot) -> bool:
        """Count an acknowledgement; True when a quorum holds: the value is chosen."""
        if self.phase is not Phase.ACCEPTING or ballot != self.ballot:
            return False
        if sender not in self._config:
            return False
        self._acks.add(sender)
        return self._config.is_quorum(self._acks)

    def silent(self) -> tuple[MemberId, ...]:
        """Return the members that have not answered the present phase, senior first."""
        answered = self._acks if self.phase is Phase.ACCEPTING else set(self._promises)
        return tuple(member for member in self._config.ids if member not in answered)

    def _value_found(self) -> tuple[Entry | None, NodeId]:
        """Return the entry accepted at the highest ballot among the promises, and who has it."""
        best: tuple[Ballot, Entry, NodeId] | None = None
        for member in self._config.ids:
            promise = self._promises.get(member)
            if promise is None or promise.ballot is None or promise.entry is None:
                continue
            mine = member.node == self._me
            if best is None or promise.ballot > best[0] or (promise.ballot == best[0] and mine):
                best = (promise.ballot, promise.entry, member.node)
        return (None, self._me) if best is None else best[1:]
