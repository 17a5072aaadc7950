"""Records, ids and the config: what every other part takes for granted."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedw_p2p.config import Address, Config, Member
from greedw_p2p.errors import MalformedMessageError
from greedw_p2p.ids import Ballot, Incarnation, MemberId, NodeId
from greedw_p2p.limits import MEMBERS_MAX
from greedw_p2p.record import DIGEST_BYTES, digest, pack, unpack

nodes = st.integers(0, 2**128 - 1).map(lambda number: NodeId(f"{number:032x}"))
incarnations = st.integers(1, 2**62 - 1).map(Incarnation)
addresses = st.builds(Address, st.sampled_from(["127.0.0.1", "::1"]), st.integers(1, 65_535))
members = st.builds(Member, nodes, incarnations, st.text(min_size=1, max_size=64), addresses)
configs = st.lists(members, min_size=1, max_size=9, unique_by=lambda member: member.node).map(
    lambda drawn: Config(tuple(drawn))
)


def config_of(count: int) -> Config:
    address = Address("127.0.0.1", 4790)
    return Config(
        tuple(
            Member(NodeId(f"{number:032x}"), Incarnation(1), f"lab-{number}", address)
            for number in range(count)
        )
    )


# -- records -----------------------------------------------------------------------------------


@given(config=configs)
def test_record_round_trips_to_equal_bytes(config: Config) -> None:
    again = unpack(pack(config), Config)
    assert again == config
    assert pack(again) == pack(config)


@given(config=configs)
def test_msgpack_and_msgspec_write_the_same_bytes(config: Config) -> None:
    assert pack(config) == msgspec.msgpack.encode(config)


@given(one=configs, other=configs)
def test_digests_are_equal_exactly_when_the_records_are(one: Config, other: Config) -> None:
    assert len(digest(one)) == DIGEST_BYTES
    assert (digest(one) == digest(other)) == (one == other)


def test_digest_is_the_same_on_every_host() -> None:
    assert digest(Ballot(7, NodeId("0a" * 16))).hex() == "73a629d40e8de00f845cc53e933f6fe1"


def test_bytes_of_a_config_that_lists_a_node_twice_are_refused() -> None:
    twice = config_of(1).members * 2
    packed = b"\x91\x92" + b"".join(pack(member) for member in twice)
    with pytest.raises(MalformedMessageError, match="listed twice"):
        unpack(packed, Config)


@pytest.mark.parametrize("count", [0, MEMBERS_MAX + 1])
def test_bytes_of_a_config_of_a_size_out_of_bounds_are_refused(count: int) -> None:
    members = b"".join(pack(member) for member in config_of(count).members)
    with pytest.raises(MalformedMessageError, match="length"):
        unpack(b"\x91\xdc" + count.to_bytes(2, "big") + members, Config)


@given(left=st.tuples(st.integers(0, 9), nodes), right=st.tuples(st.integers(0, 9), nodes))
def test_ballots_order_by_number_then_by_owner(
    left: tuple[int, NodeId], right: tuple[int, NodeId]
) -> None:
    assert (Ballot(*left) < Ballot(*right)) == (left < right)


# -- quorum ------------------------------------------------------------------------------------


@given(config=configs, data=st.data())
def test_exactly_one_of_a_set_and_its_complement_is_a_quorum(
    config: Config, data: st.DataObject
) -> None:
    chosen = data.draw(st.sets(st.sampled_from(config.ids)))
    rest = [member for member in config.ids if member not in chosen]
    assert config.is_quorum(chosen) != config.is_quorum(rest)


@given(config=configs, data=st.data())
def test_any_two_quorums_meet(config: Config, data: st.DataObject) -> None:
    subsets = st.sets(st.sampled_from(config.ids)).filter(config.is_quorum)
    assert data.draw(subsets) & data.draw(subsets)


@given(config=configs, data=st.data())
def test_adding_voters_never_loses_a_quorum(config: Config, data: st.DataObject) -> None:
    voters = data.draw(st.sets(st.sampled_from(config.ids)))
    more = voters | data.draw(st.sets(st.sampled_from(config.ids)))
    assert config.is_quorum(more) or not config.is_quorum(voters)


@pytest.mark.parametrize(
    ("count", "voters", "holds"),
    [
        (1, [0], True),
        (2, [0], True),
        (2, [1], False),
        (3, [1, 2], True),
        (3, [0], False),
        (4, [0, 3], True),
        (4, [2, 3], False),
        (4, [1, 2, 3], True),
        (5, [0, 1], False),
    ],
)
def test_quorum_is_a_majority_or_half_with_the_senior(
    count: int, voters: list[int], *, holds: bool
) -> None:
    config = config_of(count)
    assert config.is_quorum([config.ids[number] for number in voters]) is holds


@given(config=configs)
def test_quorum_size_is_what_suffices_with_the_senior_and_one_less_does_not(
    config: Config,
) -> None:
    size = config.quorum_size
    assert config.is_quorum(config.ids[:size])
    assert not config.is_quorum(config.ids[: size - 1])


def test_votes_of_another_life_or_of_strangers_do_not_count() -> None:
    config = config_of(3)
    older = [MemberId(node, Incarnation(2)) for node in config.nodes]
    strangers = [MemberId(NodeId(f"{number:032x}"), Incarnation(1)) for number in (7, 8, 9)]
    assert not config.is_quorum([*older, *strangers, config.ids[0]])


def test_voters_may_come_from_an_iterator() -> None:
    config = config_of(5)
    assert config.is_quorum(iter(config.ids[2:]))


def test_vote_given_twice_counts_once() -> None:
    config = config_of(3)
    assert not config.is_quorum([config.ids[1], config.ids[1]])


# -- changes -----------------------------------------------------------------------------------


@given(config=configs, data=st.data())
def test_change_keeps_seniority_and_appends_joiners(config: Config, data: st.DataObject) -> None:
    removed = data.draw(st.sets(st.sampled_from(config.ids), max_size=len(config.ids) - 1))
    taken = set(config.nodes)
    joined = data.draw(
        st.lists(
            members.filter(lambda member: member.node not in taken),
            max_size=3,
            unique_by=lambda member: member.node,
        )
    )
    changed = config.changed(removed=removed, joined=joined)
    kept = tuple(member for member in config.members if member.id not in removed)
    assert changed.members == (*kept, *joined)


def test_newer_life_of_a_member_replaces_the_older_one_as_the_most_junior() -> None:
    config = config_of(3)
    first = config.members[0]
    again = Member(first.node, Incarnation(2), first.name, first.address)
    changed = config.changed(joined=[again])
    assert changed.members == (*config.members[1:], again)
    assert first.id not in changed
    assert again.id in changed


def test_removal_of_an_older_life_leaves_the_newer_one() -> None:
    config = config_of(2)
    older = MemberId(config.nodes[1], Incarnation(9))
    assert config.changed(removed=[older]) == config


def test_member_is_found_by_its_node_only() -> None:
    config = config_of(3)
    assert config.find(config.nodes[2]) is config.members[2]
    assert config.find(NodeId("ff" * 16)) is None


def test_address_shows_as_a_dialler_would_write_it() -> None:
    assert str(Address("127.0.0.1", 4790)) == "127.0.0.1:4790"
    assert str(Address("::1", 4790)) == "[::1]:4790"
