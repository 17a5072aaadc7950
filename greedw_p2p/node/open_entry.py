"""The entry being decided: votes, the attempt, and what waits for bytes."""

from dataclasses import dataclass, field

from greedw_p2p.ids import Ballot, ContentDigest, EntryId, EntryIndex, MemberId, NodeId, StateDigest
from greedw_p2p.log.acceptor import Acceptor
from greedw_p2p.log.entry import Entry, EntryKind
from greedw_p2p.log.ledger import Ledger
from greedw_p2p.log.proposer import Proposer
from greedw_p2p.node.events import AttemptFinished
from greedw_p2p.plan.plan import Plan
from greedw_p2p.wire.messages import Accept


@dataclass(slots=True)
class Attempt:
    """An all-reduce in which this node takes part."""

    ballot: Ballot
    kind: EntryKind
    plan: Plan
    participants: tuple[MemberId, ...]
    broken: str = ""


@dataclass(slots=True)
class OpenEntry:
    """All that is kept about the entry after the newest committed one, and dropped with it."""

    index: EntryIndex
    previous: EntryId
    acceptor: Acceptor
    proposer: Proposer
    attempt: Attempt | None = None
    finished: AttemptFinished | None = None
    waiting_accept: tuple[MemberId, Accept] | None = None
    waiting_commit: Entry | None = None
    holder: NodeId | None = None
    missed_us: int | None = None
    """Since when an accepted or chosen result is missing here."""

    fetching: ContentDigest | None = None
    fetch_again_us: int = 0
    fetches_failed: int = 0
    speculated: dict[EntryId, StateDigest | None] = field(
        default_factory=dict[EntryId, "StateDigest | None"]
    )
    """Digests of states computed from accepted entries; None while the worker computes."""

    reported: dict[MemberId, str] = field(default_factory=dict[MemberId, str])
    """Participants that said the attempt cannot end, and why."""

    retry_us: int = 0
    retries: int = 0
    resend_us: int = 0

    @classmethod
    def after(cls, ledger: Ledger, member: MemberId) -> "OpenEntry":
        """Open the entry after the ledger's newest."""
        proposer = Proposer(member.node, ledger.config, ledger.leader)
        return cls(EntryIndex(ledger.index + 1), ledger.entry_id, Acceptor(), proposer)

    def holds(self, entry: Entry) -> bool:
        """Tell whether this node has the bytes that the entry names."""
        if entry.kind is not EntryKind.ROUND:
            return True
        return self.finished is not None and self.finished.digest == entry.result
