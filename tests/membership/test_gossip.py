"""Rumours, their dissemination, and how a node hears its peers."""

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from greedw_p2p.config import Address, Config, Member
from greedw_p2p.ids import NO_ENTRY, NO_STATE, EntryIndex, Incarnation, NodeId
from greedw_p2p.limits import SUSPECT_AFTER_TICKS, TICK_US
from greedw_p2p.membership.dissemination import TransmitQueue
from greedw_p2p.membership.heartbeat import Heartbeat
from greedw_p2p.membership.peers import Condition, Peers
from greedw_p2p.membership.roster import Roster
from greedw_p2p.membership.rumour import Liveness, Rumour


def member(number: int, incarnation: int = 1) -> Member:
    return Member(
        NodeId(f"{number:032x}"), Incarnation(incarnation), f"node-{number}", Address("::1", 7946)
    )


def heartbeat(*deaf: NodeId) -> Heartbeat:
    return Heartbeat(
        committed=EntryIndex(0),
        entry_id=NO_ENTRY,
        state=NO_STATE,
        deaf=deaf,
        hears_quorum=True,
        wants_in=False,
        leaving=False,
        sent_us=1,
        echo_us=0,
        held_us=0,
    )


rumours = st.builds(
    Rumour,
    member=st.builds(member, st.integers(1, 3), st.integers(1, 3)),
    word=st.integers(0, 2),
    liveness=st.sampled_from(Liveness),
)


@given(words=st.lists(rumours, max_size=12), data=st.data())
def test_roster_ends_up_the_same_whatever_the_order_of_rumours(
    words: list[Rumour], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(words))
    one, other = Roster(member(9)), Roster(member(9))
    one.merge(tuple(words))
    for rumour in shuffled:
        other.merge((rumour, rumour))
    assert one.everything() == other.everything()


def test_later_life_replaces_an_earlier_one_even_if_that_has_left() -> None:
    roster = Roster(member(9))
    roster.merge((Rumour(member(1), 0, Liveness.LEFT),))
    assert roster.merge((Rumour(member(1, 2), 0, Liveness.ALIVE),)) == (member(1, 2),)
    assert roster.merge((Rumour(member(1), 5, Liveness.ALIVE),)) == ()


def test_dead_life_does_not_come_back_by_a_higher_word() -> None:
    roster = Roster(member(9))
    roster.merge((Rumour(member(1), 0, Liveness.DEAD),))
    roster.merge((Rumour(member(1), 7, Liveness.ALIVE),))
    rumour = roster.rumour_of(member(1).node)
    assert rumour is not None
    assert rumour.liveness is Liveness.DEAD


def test_suspected_node_refutes_with_a_higher_word() -> None:
    me, other = Roster(member(1)), Roster(member(2))
    other.saw(member(1))
    other.declare(member(1), Liveness.SUSPECT)
    me.merge(other.everything())
    other.merge(me.everything())
    rumour = other.rumour_of(member(1).node)
    assert rumour == Rumour(member(1), 1, Liveness.ALIVE)


def test_news_is_told_a_bounded_number_of_times_least_told_first() -> None:
    queue: TransmitQueue[str, str] = TransmitQueue()
    queue.put("a", "A")
    assert queue.take(1, group=2) == ("A",)
    queue.put("b", "B")
    assert queue.take(1, group=2) == ("B",)
    told = list(itertools.takewhile(bool, (queue.take(2, group=2) for _ in range(100))))
    assert 0 < len(told) < 10
    assert len(queue) == 0


def test_rumour_reaches_everybody_through_gossip_alone() -> None:
    rng = random.Random(3)  # noqa: S311 - a test is seeded, not secret
    rosters = [Roster(member(number)) for number in range(32)]
    for tick in range(60):
        for roster in rosters:
            for peer in rng.sample(rosters, 3):
                peer.merge(roster.news())
        if all(len(roster.everything()) == 32 for roster in rosters):
            assert tick < 40
            return
    raise AssertionError("some node never heard of another")


def test_peer_is_suspected_after_silence_and_alive_when_it_speaks_again() -> None:
    peers = Peers(member(9).node)
    peers.connected(member(1), 0)
    limit_us = SUSPECT_AFTER_TICKS * TICK_US
    assert peers.tick(limit_us, 0) == ()
    assert [p.member for p in peers.tick(limit_us + 1, 0)] == [member(1)]
    assert peers.tick(limit_us + 2, 0) == ()
    assert peers.condition(member(1).id) is Condition.SUSPECTED
    peers.heard(member(1).id, heartbeat(), limit_us + 3)
    assert peers.condition(member(1).id) is Condition.ALIVE


def test_time_in_which_this_node_stood_still_is_not_silence_of_others() -> None:
    peers = Peers(member(9).node)
    peers.connected(member(1), 0)
    pause_us = 60_000_000
    assert peers.tick(pause_us, lag_us=pause_us - TICK_US) == ()


def test_closed_connection_fails_the_peer_at_once_and_a_later_life_replaces_it() -> None:
    peers = Peers(member(9).node)
    peers.connected(member(1), 0)
    assert peers.disconnected(member(1).id, "end of file")
    assert not peers.disconnected(member(1).id, "again")
    assert peers.condition(member(1).id) is Condition.FAILED
    assert peers.connected(member(1, 2), 5)
    assert peers.condition(member(1).id) is Condition.FAILED
    assert peers.condition(member(1, 2).id) is Condition.ALIVE
    assert not peers.connected(member(1), 6)


def test_quorum_is_heard_only_both_ways() -> None:
    me = member(9)
    peers = Peers(me.node)
    config = Config((member(1), member(2), me))
    for number in (1, 2):
        peers.connected(member(number), 0)
        peers.heard(member(number).id, heartbeat(), 0)
    assert peers.hears_quorum(config)
    for number in (1, 2):
        peers.heard(member(number).id, heartbeat(me.node), 0)
    assert not peers.hears_quorum(config)
