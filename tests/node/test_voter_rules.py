"""One voter's answers to messages made up for it: the rules that no honest cluster puts to test."""

from dataclasses import dataclass

import msgspec
import pytest

from greedw_p2p.ids import (
    NO_CONTENT,
    Ballot,
    ContentDigest,
    EntryId,
    EntryIndex,
    LineageId,
    MemberId,
    StateDigest,
)
from greedw_p2p.log.entry import Entry, EntryKind
from greedw_p2p.node import effects, events
from greedw_p2p.node.core import Node
from greedw_p2p.node.effects import Send
from greedw_p2p.testing.cluster import SimCluster
from greedw_p2p.testing.host import SimHost
from greedw_p2p.wire.messages import (
    Accept,
    Ack,
    Broken,
    Commit,
    ControlMessage,
    Nack,
    Prepare,
    Promise,
    Start,
)

SECOND_US = 1_000_000


@dataclass
class Voter:
    """A member that holds a round's bytes, and from which the round's ACCEPT was kept."""

    node: Node
    me: MemberId
    leader: MemberId
    other: MemberId
    lineage: LineageId
    now_us: int
    accept: Accept

    def tell(self, message: ControlMessage, sender: MemberId | None = None) -> list[effects.Effect]:
        received = events.MessageReceived(sender or self.leader, self.lineage, message)
        return self.node.handle(received, self.now_us)

    @property
    def round(self) -> Entry:
        return self.accept.entry

    def config_entry(self) -> Entry:
        """Return an entry that removes the other member instead of training."""
        entry = self.round
        return msgspec.structs.replace(
            entry,
            kind=EntryKind.CONFIG,
            result=NO_CONTENT,
            outcome=None,
            config=entry.config.changed(removed=(self.other,)),
        )


def answers(told: list[effects.Effect], kind: type) -> list[object]:
    return [e.message for e in told if isinstance(e, Send) and isinstance(e.message, kind)]


@pytest.fixture
def voter() -> Voter:
    cluster = SimCluster.formed(3, seed=12)
    kept: list[tuple[SimHost, Send]] = []

    def keep(host: SimHost, send: Send) -> bool:
        message = send.message
        if not kept and isinstance(message, Accept) and message.entry.kind is EntryKind.ROUND:
            kept.append((host, send))
        return bool(kept) and send.to == kept[0][1].to

    cluster.loses = keep
    cluster.submit(0)
    cluster.run_until(lambda: bool(kept), within_us=20 * SECOND_US)
    cluster.run_for(SECOND_US // 10)
    leader, send = kept[0]
    target = next(host for host in cluster.hosts if host.member.id == send.to)
    other = next(host for host in cluster.hosts if host not in (leader, target))
    assert target.node is not None
    assert isinstance(send.message, Accept)
    ids = (target.member.id, leader.member.id, other.member.id)
    return Voter(target.node, *ids, target.node.lineage, cluster.agenda.now_us, send.message)


def test_round_is_acknowledged_with_its_bytes_and_applied_ahead_but_not_taken_over(
    voter: Voter,
) -> None:
    told = voter.tell(voter.accept)
    assert [type(e).__name__ for e in told] == ["ApplyResult", "Send"]
    assert answers(told, Ack) == [
        Ack(
            voter.round.index,
            voter.round.previous,
            voter.accept.ballot,
            voter.round.id(),
            voter.round.state,
        )
    ]


def test_chosen_round_is_taken_over_and_then_told(voter: Voter) -> None:
    voter.tell(voter.accept)
    told = voter.tell(Commit(voter.round))
    kinds = [type(e).__name__ for e in told]
    assert kinds.index("FlipState") < kinds.index("Committed")


def test_state_of_an_accepted_round_is_dropped_when_another_entry_is_chosen(voter: Voter) -> None:
    voter.tell(voter.accept)
    told = voter.tell(Commit(voter.config_entry()))
    assert any(isinstance(e, effects.Committed) for e in told)
    assert not any(isinstance(e, effects.FlipState) for e in told)


def test_round_is_not_acknowledged_without_its_bytes(voter: Voter) -> None:
    other = msgspec.structs.replace(voter.round, result=ContentDigest(b"x" * 16))
    told = voter.tell(msgspec.structs.replace(voter.accept, entry=other))
    assert answers(told, Ack) == []


def test_change_of_the_config_is_on_the_disk_before_it_is_acknowledged(voter: Voter) -> None:
    entry = voter.config_entry()
    told = voter.tell(msgspec.structs.replace(voter.accept, entry=entry))
    assert [type(e).__name__ for e in told] == ["Persist", "Send"]
    persist = told[0]
    assert isinstance(persist, effects.Persist)
    assert persist.accepted == (entry.index, voter.accept.ballot, entry.config)


def test_entry_with_a_figure_that_is_no_number_is_not_acknowledged(voter: Voter) -> None:
    assert voter.round.outcome is not None
    outcome = msgspec.structs.replace(voter.round.outcome, loss_sum=float("nan"))
    other = msgspec.structs.replace(voter.round, outcome=outcome)
    assert voter.tell(msgspec.structs.replace(voter.accept, entry=other)) == []


def test_replica_with_another_state_stops_instead_of_voting(voter: Voter) -> None:
    other = msgspec.structs.replace(voter.round, state=StateDigest(b"y" * 16))
    told = voter.tell(msgspec.structs.replace(voter.accept, entry=other))
    assert answers(told, Ack) == []
    assert [e.failed for e in told if isinstance(e, effects.Stopped)] == [True]


def test_entry_on_another_history_stops_the_node(voter: Voter) -> None:
    other = msgspec.structs.replace(voter.round, previous=EntryId(b"z" * 16))
    told = voter.tell(Commit(other))
    assert [e.failed for e in told if isinstance(e, effects.Stopped)] == [True]
    assert not any(isinstance(e, effects.Committed) for e in told)


def test_ballot_zero_of_another_than_the_leader_is_ignored(voter: Voter) -> None:
    ballot = Ballot(0, voter.other.node)
    accept = msgspec.structs.replace(voter.accept, ballot=ballot)
    assert answers(voter.tell(accept, voter.other), Ack) == []


def test_ballot_of_another_owner_than_the_sender_is_ignored(voter: Voter) -> None:
    assert voter.tell(voter.accept, voter.other) == []


def test_ballot_below_a_promise_is_refused_in_accept_and_start(voter: Voter) -> None:
    entry, ballot = voter.round, voter.accept.ballot
    promised = Ballot(3, voter.leader.node)
    assert answers(voter.tell(Prepare(entry.index, entry.previous, promised)), Promise) == [
        Promise(entry.index, entry.previous, promised, None, None)
    ]
    nack = Nack(entry.index, entry.previous, ballot, promised)
    assert answers(voter.tell(voter.accept), Nack) == [nack]
    start = Start(entry.index, entry.previous, ballot, EntryKind.ROUND, (voter.me,), b"", b"")
    assert answers(voter.tell(start), Nack) == [nack]


def test_promise_tells_what_was_accepted(voter: Voter) -> None:
    voter.tell(voter.accept)
    entry, promised = voter.round, Ballot(3, voter.leader.node)
    assert answers(voter.tell(Prepare(entry.index, entry.previous, promised)), Promise) == [
        Promise(entry.index, entry.previous, promised, voter.accept.ballot, entry)
    ]


def test_attempt_on_another_view_is_refused_by_name(voter: Voter) -> None:
    entry, ballot = voter.round, Ballot(1, voter.leader.node)
    ids = tuple(sorted((voter.me, voter.leader, voter.other)))
    start = Start(entry.index, entry.previous, ballot, EntryKind.ROUND, ids, b"v" * 16, b"p" * 16)
    told = voter.tell(start)
    assert not any(isinstance(e, effects.BeginAttempt) for e in told)
    broken = answers(told, Broken)
    assert len(broken) == 1
    assert isinstance(broken[0], Broken)
    assert "derives another view" in broken[0].reason


def start_after(voter: Voter) -> Start:
    """Return the START of the entry after the round, on a view that is not this voter's."""
    index, ballot = EntryIndex(voter.round.index + 1), Ballot(0, voter.round.leader)
    ids = tuple(sorted((voter.me, voter.leader, voter.other)))
    return Start(index, voter.round.id(), ballot, EntryKind.ROUND, ids, b"v" * 16, b"p" * 16)


def member_of(voter: Voter, entry: Entry) -> MemberId:
    member = entry.config.find(entry.leader)
    assert member is not None
    return member.id


def test_accepted_round_is_committed_by_a_message_that_builds_on_it(voter: Voter) -> None:
    voter.tell(voter.accept)
    told = voter.tell(start_after(voter), voter.leader)
    assert [e.entry for e in told if isinstance(e, effects.Committed)] == [voter.round]


def test_message_that_is_ahead_is_handled_when_the_entry_before_it_is_committed(
    voter: Voter,
) -> None:
    sender = member_of(voter, voter.round)
    if sender == voter.me:
        sender = voter.leader
    ahead = Prepare(EntryIndex(voter.round.index + 1), voter.round.id(), Ballot(1, sender.node))
    assert answers(voter.tell(ahead, sender), Promise) == []
    told = voter.tell(Commit(voter.round))
    assert len(answers(told, Promise)) == 1


def test_node_that_was_removed_acknowledges_nothing_more(voter: Voter) -> None:
    removal = msgspec.structs.replace(
        voter.config_entry(), config=voter.round.config.changed(removed=(voter.me,))
    )
    voter.tell(Commit(removal))
    after = msgspec.structs.replace(
        removal, index=EntryIndex(removal.index + 1), previous=removal.id()
    )
    owner = member_of(voter, removal) if removal.leader != voter.me.node else voter.leader
    accept = Accept(Ballot(1, owner.node), after, owner.node)
    assert answers(voter.tell(accept, owner), Ack) == []
