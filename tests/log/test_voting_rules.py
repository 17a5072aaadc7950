"""Acceptor and proposer of one entry: examples of each rule, and a property over random runs."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedw_p2p.config import Address, Config, Member
from greedw_p2p.ids import (
    NO_CONTENT,
    NO_ENTRY,
    NO_STATE,
    Ballot,
    EntryIndex,
    Incarnation,
    LineageId,
    MemberId,
    NodeId,
)
from greedw_p2p.log.acceptor import Acceptor
from greedw_p2p.log.entry import Entry, EntryKind
from greedw_p2p.log.proposer import Phase, Promised, Proposer
from greedw_p2p.view import ViewDelta


def member(number: int) -> Member:
    return Member(
        NodeId(f"{number:032x}"), Incarnation(1), f"node-{number}", Address("10.0.0.1", 7946)
    )


def config(count: int) -> Config:
    return Config(tuple(member(number) for number in range(1, count + 1)))


def entry(leader: int, count: int = 3) -> Entry:
    return Entry(
        lineage=LineageId("a" * 32),
        index=EntryIndex(1),
        kind=EntryKind.CONFIG,
        previous=NO_ENTRY,
        state=NO_STATE,
        result=NO_CONTENT,
        outcome=None,
        config=config(count),
        leader=member(leader).node,
        job=None,
        delta=ViewDelta(),
    )


def ballot(number: int, owner: int = 1) -> Ballot:
    return Ballot(number, member(owner).node)


def ids(*numbers: int) -> tuple[MemberId, ...]:
    return tuple(member(number).id for number in numbers)


def test_acceptor_refuses_a_ballot_below_the_one_it_promised() -> None:
    acceptor = Acceptor()
    assert acceptor.promise(ballot(2))
    assert not acceptor.promise(ballot(1))
    assert not acceptor.accept(ballot(0), entry(1))
    assert acceptor.accepted is None


def test_acceptor_promises_the_same_ballot_again() -> None:
    acceptor = Acceptor()
    assert acceptor.promise(ballot(2))
    assert acceptor.promise(ballot(2))


def test_accepting_raises_the_promise() -> None:
    acceptor = Acceptor()
    assert acceptor.accept(ballot(3), entry(1))
    assert acceptor.refuses(ballot(2))
    assert not acceptor.refuses(ballot(3))


def test_equal_numbers_are_ordered_by_owner() -> None:
    acceptor = Acceptor()
    assert acceptor.promise(ballot(1, owner=2))
    assert acceptor.refuses(ballot(1, owner=1))
    assert not acceptor.refuses(ballot(1, owner=3))


def test_ballot_zero_is_the_leaders_and_is_started_once() -> None:
    leader = Proposer(member(1).node, config(3), member(1).node)
    other = Proposer(member(2).node, config(3), member(1).node)
    assert leader.can_lead()
    assert not other.can_lead()
    leader.start_leading()
    assert not leader.can_lead()


def test_ballot_zero_is_not_started_after_a_refusal() -> None:
    leader = Proposer(member(1).node, config(3), member(1).node)
    leader.refused(ballot(4, owner=2))
    assert not leader.can_lead()
    assert leader.start_higher(None) == ballot(5)


def test_higher_ballot_is_above_everything_seen() -> None:
    proposer = Proposer(member(1).node, config(3), member(1).node)
    proposer.start_leading()
    proposer.refused(ballot(2, owner=3))
    assert proposer.start_higher(ballot(6, owner=2)) == ballot(7)


def test_value_of_the_highest_accepted_ballot_is_taken_over_unchanged() -> None:
    proposer = Proposer(member(1).node, config(3), member(1).node)
    own = proposer.start_higher(ballot(8, owner=2))
    low, high = entry(2), entry(3)
    assert not proposer.on_promise(member(1).id, own, Promised(ballot(7, owner=2), low))
    assert proposer.on_promise(member(3).id, own, Promised(ballot(8, owner=2), high))
    assert proposer.value == high
    with pytest.raises(AssertionError, match="unchanged"):
        proposer.propose(low)


def test_promises_of_strangers_and_of_other_lives_do_not_count() -> None:
    proposer = Proposer(member(1).node, config(3), member(1).node)
    own = proposer.start_higher(None)
    reborn = MemberId(member(2).node, Incarnation(2))
    none = Promised(None, None)
    assert not proposer.on_promise(member(1).id, own, none)
    assert not proposer.on_promise(reborn, own, none)
    assert not proposer.on_promise(member(9).id, own, none)
    assert proposer.on_promise(member(2).id, own, none)


def test_acknowledgements_of_another_ballot_or_life_do_not_count() -> None:
    proposer = Proposer(member(1).node, config(3), member(1).node)
    own = proposer.start_leading()
    proposer.propose(entry(1))
    assert not proposer.on_ack(member(1).id, own)
    assert not proposer.on_ack(member(1).id, own)
    assert not proposer.on_ack(MemberId(member(2).node, Incarnation(2)), own)
    assert not proposer.on_ack(member(2).id, ballot(1))
    assert proposer.on_ack(member(2).id, own)


def test_half_of_the_members_is_a_quorum_only_with_the_senior_one() -> None:
    assert config(4).is_quorum(ids(1, 4))
    assert not config(4).is_quorum(ids(3, 4))
    assert config(4).is_quorum(ids(2, 3, 4))


@given(seed=st.integers(0, 2**32), count=st.integers(1, 5))
def test_no_two_values_are_ever_chosen_whatever_the_order_of_messages(
    seed: int, count: int
) -> None:
    """Several proposers race over one entry; messages are lost, doubled and reordered."""
    rng = random.Random(seed)  # noqa: S311 - a test is seeded, not secret
    race = Race(count, rng)
    for _ in range(120):
        race.step()
    assert len(race.chosen) <= 1


class Race:
    """Acceptors and proposers of one entry over a network that keeps every message it was given."""

    def __init__(self, count: int, rng: random.Random) -> None:
        self.rng = rng
        self.config = config(count)
        leader = member(1).node
        self.acceptors = {m.id: Acceptor() for m in self.config.members}
        self.proposers = [Proposer(m.node, self.config, leader) for m in self.config.members]
        self.sent: list[tuple[str, int, MemberId, Ballot, Entry | None, Promised | None]] = []
        self.chosen: set[bytes] = set()

    def step(self) -> None:
        if self.sent and self.rng.random() < 0.8:
            self._deliver(*self.rng.choice(self.sent))
        else:
            self._begin(self.rng.randrange(len(self.proposers)))

    def _begin(self, number: int) -> None:
        proposer = self.proposers[number]
        if proposer.phase is Phase.OPEN:
            self._propose(number)
        elif proposer.can_lead() and self.rng.random() < 0.7:
            own = proposer.start_leading()
            assert own.number == 0
        elif proposer.phase is not Phase.ACCEPTING or self.rng.random() < 0.1:
            own = proposer.start_higher(self.acceptors[self.config.ids[number]].promised)
            for voter in self.config.ids:
                self.sent.append(("prepare", number, voter, own, None, None))

    def _propose(self, number: int) -> None:
        proposer = self.proposers[number]
        assert proposer.ballot is not None
        # Every fresh value is another one: which leader it names tells them apart.
        value = proposer.value or entry(number + 1, len(self.config.members))
        proposer.propose(value)
        for voter in self.config.ids:
            self.sent.append(("accept", number, voter, proposer.ballot, value, None))

    def _deliver(
        self,
        kind: str,
        number: int,
        voter: MemberId,
        own: Ballot,
        value: Entry | None,
        promised: Promised | None,
    ) -> None:
        acceptor, proposer = self.acceptors[voter], self.proposers[number]
        if kind == "prepare":
            if acceptor.promise(own):
                held = Promised(acceptor.accepted_ballot, acceptor.accepted)
                self.sent.append(("promise", number, voter, own, None, held))
            elif acceptor.promised is not None:
                proposer.refused(acceptor.promised)
        elif kind == "promise" and promised is not None:
            proposer.on_promise(voter, own, promised)
        elif kind == "accept" and value is not None:
            if acceptor.accept(own, value):
                self.sent.append(("ack", number, voter, own, value, None))
        elif kind == "ack" and proposer.on_ack(voter, own) and proposer.value is not None:
            self.chosen.add(proposer.value.id())
