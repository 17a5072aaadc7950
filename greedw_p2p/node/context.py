"""What the parts of a node share: who it is, what it knows, and where its effects go."""

import random
from dataclasses import dataclass, field

from greedw_p2p.config import Config, Member
from greedw_p2p.ids import (
    NO_STATE,
    Ballot,
    EntryIndex,
    JobId,
    LineageId,
    MemberId,
    NodeId,
    StateDigest,
    short,
)
from greedw_p2p.links.table import LinkTable
from greedw_p2p.log.ledger import Ledger
from greedw_p2p.membership.peers import Peers
from greedw_p2p.membership.roster import Roster
from greedw_p2p.node.boot import Boot
from greedw_p2p.node.effects import Persist
from greedw_p2p.node.outbox import Outbox
from greedw_p2p.view import RoundReport


@dataclass(slots=True)
class Durable:
    """What is on disk: the newest known committed config, and an accepted change of it."""

    index: EntryIndex
    config: Config | None
    accepted: tuple[EntryIndex, Ballot, Config] | None = None


@dataclass(slots=True)
class Context:
    """State that more than one part of the node reads. Each field has one part that writes it."""

    me: Member
    boot: Boot
    rng: random.Random
    out: Outbox
    peers: Peers
    roster: Roster
    links: LinkTable
    lineage: LineageId
    ledger: Ledger | None
    durable: Durable
    now_us: int
    leaving: bool = False
    state: StateDigest | None = NO_STATE
    """Digest of the running job's state after the newest committed entry; None until computed."""

    shown_state: StateDigest = NO_STATE
    """Digest of the newest job's state, also after the job has ended."""

    lost_job: JobId | None = None
    """The newest job whose worker has failed here; its state is not computed any more."""

    reports: dict[NodeId, RoundReport] = field(default_factory=dict[NodeId, RoundReport])
    final_digests: dict[JobId, dict[str, str]] = field(
        default_factory=dict[JobId, "dict[str, str]"]
    )
    """State digests of ended jobs by member, as far as they were heard; for people."""

    sent_bytes: dict[NodeId, int] = field(default_factory=dict[NodeId, int])

    @property
    def id(self) -> MemberId:
        """This very life."""
        return self.me.id

    @property
    def config(self) -> Config | None:
        """The committed config, None before the first entry is known."""
        return None if self.ledger is None else self.ledger.config

    @property
    def is_member(self) -> bool:
        """Tell whether this very life is in the committed config."""
        return self.ledger is not None and self.me.id in self.ledger.config

    @property
    def is_blind(self) -> bool:
        """Tell whether the running job is one whose state this node does not compute."""
        job = None if self.ledger is None else self.ledger.running_job
        return job is not None and not self.computes(job.spec.id)

    def computes(self, job: JobId) -> bool:
        """Tell whether this node takes part in a job: a member whose worker has not failed."""
        return self.is_member and job != self.lost_job

    @property
    def leader(self) -> MemberId | None:
        """The leader of the next entry, as far as known here."""
        member = None if self.ledger is None else self.ledger.config.find(self.ledger.leader)
        return None if member is None else member.id

    @property
    def leader_acts(self) -> bool:
        """Tell whether the leader is heard and hears a quorum, so that it does what is asked."""
        leader = self.leader
        if leader is None or not self.peers.is_reachable(leader):
            return False
        if leader == self.id:
            return self.hears_quorum
        peer = self.peers.get(leader)
        return peer is not None and peer.heartbeat is not None and peer.heartbeat.hears_quorum

    @property
    def hears_quorum(self) -> bool:
        """Tell whether this node hears a quorum of the committed config, both ways."""
        return self.ledger is not None and self.peers.hears_quorum(self.ledger.config)

    @property
    def my_name(self) -> str:
        """This node's name for people."""
        return self.name_of(self.me.node)

    def name_of(self, node: NodeId) -> str:
        """Return a node's name for people, with its short id where two members share a name."""
        name = self._own_name_of(node)
        if name is None:
            return short(node)
        members = () if self.config is None else self.config.members
        shared = any(m.name == name and m.node != node for m in members)
        return f"{name}-{short(node)}" if shared else name

    def _own_name_of(self, node: NodeId) -> str | None:
        if node == self.me.node:
            return self.me.name
        peer = self.peers.find(node)
        if peer is not None:
            return peer.member.name
        member = None if self.config is None else self.config.find(node)
        return None if member is None else member.name

    def persist(
        self,
        index: EntryIndex,
        config: Config,
        accepted: tuple[EntryIndex, Ballot, Config] | None,
    ) -> None:
        """Write the durable state if it changes; the shell syncs before the next effect."""
        wanted = Durable(index, config, accepted)
        if self.durable.config == config and self.durable.accepted == accepted:
            # The index of an unchanged config need not be written: no fsync in normal rounds.
            return
        self.durable = wanted
        self.out.emit(Persist(self.lineage, index, config, accepted))
