import struct
import tracemalloc
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect as types

from greedw_p2p.config import Address, Config, Member
from greedw_p2p.errors import MalformedMessageError
from greedw_p2p.ids import (
    Ballot,
    ClusterId,
    ContentDigest,
    EntryId,
    EntryIndex,
    Incarnation,
    LineageId,
    MemberId,
    NodeId,
    StateDigest,
)
from greedw_p2p.limits import CONTROL_BODY_BYTES_MAX, KIB, MEMBERS_MAX, MIB, NAME_CHARS_MAX
from greedw_p2p.log.entry import Entry, EntryKind, RoundOutcome
from greedw_p2p.record import Record, pack
from greedw_p2p.view import RoundReport, View, ViewDelta
from greedw_p2p.wire.codec import (
    BULK_LIMITS,
    BULK_TYPES,
    CONTROL_LIMITS,
    CONTROL_TYPES,
    HANDSHAKE_LIMITS,
    HANDSHAKE_TYPES,
    JOIN_ANSWER_LIMITS,
    KIND_OF,
    TYPES_WITH_BODY,
    decode,
    decode_control,
    encode,
    encode_control,
)
from greedw_p2p.wire.framing import Frame, FrameDecoder
from greedw_p2p.wire.messages import (
    Ack,
    Bytes,
    Chunk,
    Commit,
    ContentMessage,
    Contribution,
    ControlMessage,
    Gossip,
    Heartbeat,
    JoinAccepted,
    Message,
    PartSummary,
    ProbeChunk,
    Start,
    Welcome,
)

LINEAGE = LineageId("0123456789abcdef" * 2)
ALL_TYPES = sorted(KIND_OF, key=lambda kind: KIND_OF[kind])
NEST = b"\xdd" + struct.pack(">I", 65_536)

# -- any record, drawn from its declared fields and bounds -----------------------------------


def strategy_of(kind: type[Record]) -> st.SearchStrategy[Any]:
    return _strategy(types.type_info(kind))


def _strategy(info: types.Type) -> st.SearchStrategy[Any]:
    match info:
        case types.Metadata(type=inner):
            return _strategy(inner)
        case types.StructType():
            return _struct(info)
        case types.UnionType(types=options):
            return st.one_of([_strategy(option) for option in options])
        case types.VarTupleType(item_type=item):
            return st.lists(_strategy(item), min_size=info.min_length or 0, max_size=2).map(tuple)
        case types.EnumType(cls=cls):
            return st.sampled_from(list(cls))
        case _:
            return _scalar(info)


def _scalar(info: types.Type) -> st.SearchStrategy[Any]:  # noqa: PLR0911 - one per type
    match info:
        case types.IntType():
            most = info.lt - 1 if info.lt is not None else info.le
            return st.integers(info.ge, most)
        case types.FloatType():
            least = info.gt if info.gt is not None else info.ge
            return st.floats(
                least,
                info.lt,
                exclude_min=info.gt is not None,
                exclude_max=info.lt is not None,
                allow_nan=False,
            )
        case types.StrType(pattern=str(pattern)):
            return st.from_regex(pattern, fullmatch=True)
        case types.StrType():
            return st.text(min_size=info.min_length or 0, max_size=min(info.max_length or 9, 9))
        case types.BytesType():
            return st.binary(min_size=info.min_length or 0, max_size=info.max_length)
        case types.BoolType():
            return st.booleans()
        case types.NoneType():
            return st.none()
        case _:
            raise AssertionError(f"no strategy for {info}")


def _struct(info: types.StructType) -> st.SearchStrategy[Any]:
    fields = {field.name: _strategy(field.type) for field in info.fields}
    if info.cls is View:
        nodes = st.sets(st.from_regex("[0-9a-f]{32}", fullmatch=True), max_size=3)
        fields["members"] = nodes.map(lambda chosen: tuple(sorted(chosen)))
    if info.cls is Config:
        members = st.lists(
            _strategy(types.type_info(Member)),
            min_size=1,
            max_size=3,
            unique_by=lambda member: member.node,
        )
        fields["members"] = members.map(tuple)
    return st.builds(info.cls, **fields)


def _cut(limits_kind: type[Record], wire: bytes) -> Frame:
    if limits_kind in HANDSHAKE_TYPES:
        limits = HANDSHAKE_LIMITS
    else:
        limits = BULK_LIMITS if limits_kind in BULK_TYPES else CONTROL_LIMITS
    frames = FrameDecoder(limits).feed(wire)
    assert len(frames) == 1
    return frames[0]


def _peak_of(call: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# -- kinds -------------------------------------------------------------------------------------


def test_every_message_has_one_kind_number_within_its_connections_range() -> None:
    assert set(KIND_OF) == set(get_args(Message))
    assert len(set(KIND_OF.values())) == len(KIND_OF)
    ranges = (
        (HANDSHAKE_TYPES, range(1, 16)),
        (CONTROL_TYPES, range(16, 64)),
        (BULK_TYPES, range(64, 80)),
    )
    assert sum(len(kinds) for kinds, _ in ranges) == len(KIND_OF)
    for kinds, numbers in ranges:
        assert all(KIND_OF[kind] in numbers for kind in kinds)


def test_heartbeat_has_the_documented_bytes() -> None:
    message = Heartbeat(
        committed=EntryIndex(300),
        entry_id=EntryId(b"\x01" * 16),
        state=StateDigest(b""),
        deaf=(NodeId("0f" * 16),),
        hears_quorum=True,
        wants_in=False,
        leaving=False,
        sent_us=5_000_000,
        echo_us=0,
        held_us=0,
    )
    expected = (
        "67570110" + "00000055" + "00000000"  # gW, version 1, kind 16; header 85 bytes; no body
        "0123456789abcdef0123456789abcdef"  # lineage
        "9a" + "cd012c" + "c410" + "01" * 16 + "c400"  # ten fields: 300, 16 bytes, no bytes
        "91"
        + "d920"
        + "3066" * 16  # one node id
        + "c3c2c2"
        + "ce004c4b40"
        + "0000"
    )
    assert encode_control(LINEAGE, message).hex() == expected


# -- round trips -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.__name__)
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_message_round_trips(kind: type[Record], data: st.DataObject) -> None:
    message = data.draw(strategy_of(kind))
    if kind in CONTROL_TYPES:
        body = bytes(message.size) if isinstance(message, ProbeChunk) else b""
        frame = _cut(kind, encode_control(LINEAGE, message, len(body)) + body)
        assert decode_control(frame) == (LINEAGE, message)
        return
    body = b"body" if kind in TYPES_WITH_BODY else b""
    frame = _cut(kind, encode(message, body) + body)
    assert frame.body == body
    assert decode(frame.kind, frame.header, (kind,)) == message


def test_encode_counts_the_bytes_of_a_body_of_wider_elements() -> None:
    chunk = Chunk(LINEAGE, EntryIndex(1), Ballot(0, NodeId("0a" * 16)), 0, 1, 2)
    floats = memoryview(bytearray(64)).cast("f")
    frame = _cut(Chunk, encode(chunk, floats) + bytes(floats))
    assert len(frame.body) == 64


# -- what a peer may get wrong -----------------------------------------------------------------


def test_kind_of_another_connection_is_refused_by_name() -> None:
    header = pack(Welcome(_member(0)))
    with pytest.raises(MalformedMessageError, match=r"a Welcome is not taken here.*Chunk"):
        decode(KIND_OF[Welcome], header, BULK_TYPES)


@pytest.mark.parametrize("number", [0, 6, 50, 255])
def test_unknown_kind_is_refused_by_number(number: int) -> None:
    with pytest.raises(MalformedMessageError, match=f"kind {number} is not taken"):
        decode(number, b"\x90", CONTROL_TYPES)


@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.__name__)
@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_truncated_or_extended_header_is_refused_by_name(
    kind: type[Record], data: st.DataObject
) -> None:
    header = pack(data.draw(strategy_of(kind)))
    length = data.draw(st.integers(0, len(header) - 1))
    for wrong in (header[:length], header + b"\x00"):
        with pytest.raises(MalformedMessageError, match=kind.__name__):
            decode(KIND_OF[kind], wrong, (kind,))


@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.__name__)
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_altered_header_is_refused_or_is_the_message_it_says(
    kind: type[Record], data: st.DataObject
) -> None:
    header = bytearray(pack(data.draw(strategy_of(kind))))
    header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    try:
        message = decode(KIND_OF[kind], bytes(header), (kind,))
    except MalformedMessageError:
        return
    assert type(message) is kind
    assert isinstance(pack(message), bytes)


@given(garbage=st.binary(max_size=200))
def test_garbage_header_is_refused(garbage: bytes) -> None:
    for kind in ALL_TYPES:
        try:
            decode(KIND_OF[kind], garbage, (kind,))
        except MalformedMessageError:
            continue
        assert pack(decode(KIND_OF[kind], garbage, (kind,))) is not None


BOMBS = {
    "nested arrays that each announce 65,536 elements": (NEST * 200_000)[: 1 * MIB],
    "arrays nested a million deep": b"\x91" * (1 * MIB),
    "a map that announces four thousand million pairs": b"\xdf\xff\xff\xff\xff" * 1_000,
    "a string that announces four gigabytes": b"\x9a\xdb\xff\xff\xff\xff",
    "bytes that announce four gigabytes": b"\x9a\x00\xc6\xff\xff\xff\xff",
    "an extension type": b"\xc9\xff\xff\xff\xff\x01",
    "an array that announces four thousand million elements": b"\xdd\xff\xff\xff\xff\x00",
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_bomb_is_refused_in_little_memory(bomb: bytes) -> None:
    def try_all() -> None:
        for kind in ALL_TYPES:
            with pytest.raises(MalformedMessageError):
                decode(KIND_OF[kind], bomb, (kind,))

    assert _peak_of(try_all) < 256 * KIB


@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.__name__)
@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_bomb_in_any_field_is_refused_in_little_memory(
    kind: type[Record], data: st.DataObject
) -> None:
    message = data.draw(strategy_of(kind))
    names = kind.__struct_fields__
    values = [msgspec.msgpack.encode(getattr(message, name)) for name in names]
    for bomb in (NEST * 20_000, b"\xdd\xff\xff\xff\xff" + b"\x90" * 100_000):
        for position in range(len(names)):
            fields = (*values[:position], bomb, *values[position + 1 :])
            header = bytes([0x90 | len(names)]) + b"".join(fields)

            def try_it(header: bytes = header) -> None:
                with pytest.raises(MalformedMessageError):
                    decode(KIND_OF[kind], header, (kind,))

            assert _peak_of(try_it) < 256 * KIB


def test_array_of_more_elements_than_a_field_allows_is_refused_before_it_is_built() -> None:
    count = MEMBERS_MAX + 1
    rumours = b"\xdd" + struct.pack(">I", count) + b"\x90" * count
    with pytest.raises(MalformedMessageError, match=f"length <= {MEMBERS_MAX}"):
        decode(KIND_OF[Gossip], b"\x93" + rumours + b"\x90\xc2", (Gossip,))


@pytest.mark.parametrize(
    "node", ["0f" * 16 + "\n", "0F" * 16, "0f" * 15, "\uff10" * 32, "0f" * 17, "../../etc/passwd"]
)
def test_node_id_that_is_not_32_hexadecimal_digits_is_refused(node: str) -> None:
    ballot = msgspec.msgpack.encode([1, b"", [0, node], "round", [], b"", b""])
    with pytest.raises(MalformedMessageError, match="Start"):
        decode(KIND_OF[Start], ballot, (Start,))


# -- control frames ----------------------------------------------------------------------------


def test_control_header_shorter_than_a_lineage_is_refused() -> None:
    for length in range(17):
        with pytest.raises(MalformedMessageError):
            decode_control(Frame(KIND_OF[Ack], bytes(length), b""))


@pytest.mark.parametrize(
    ("message", "body_bytes"),
    [
        (Gossip((), (), answer=False), 1),
        (ProbeChunk(1, 0, 2, 100), 99),
        (ProbeChunk(1, 0, 2, 100), 0),
        (Bytes(b"\x01" * 16, 0, 0), 1),
        (Bytes(b"\x01" * 16, 90, 100), 11),
        (Bytes(b"\x01" * 16, 200, 100), 1),
    ],
)
def test_body_of_another_size_than_the_message_says_is_refused(
    message: ControlMessage | ContentMessage, body_bytes: int
) -> None:
    frame = _cut(type(message), encode_control(LINEAGE, message, body_bytes) + bytes(body_bytes))
    with pytest.raises(MalformedMessageError, match=type(message).__name__):
        decode_control(frame)


@pytest.mark.parametrize(
    ("message", "body_bytes"),
    [
        (ProbeChunk(1, 0, 2, CONTROL_BODY_BYTES_MAX), CONTROL_BODY_BYTES_MAX),
        (Bytes(b"\x01" * 16, 90, 100), 10),
        (Bytes(b"\x01" * 16, 500, 0), 0),
    ],
)
def test_body_of_the_size_that_the_message_says_is_taken(
    message: ContentMessage | ControlMessage, body_bytes: int
) -> None:
    frame = _cut(type(message), encode_control(LINEAGE, message, body_bytes) + bytes(body_bytes))
    assert decode_control(frame) == (LINEAGE, message)


# -- sizes -------------------------------------------------------------------------------------


def _member(number: int) -> Member:
    """A member whose packed form is the longest of ordinary ones."""
    address = Address("2001:0db8:0000:0000:0000:0000:0000:0001", 65_535)
    return Member(NodeId(f"{number:032x}"), Incarnation(2**62 - 1), "n" * NAME_CHARS_MAX, address)


def test_join_answer_with_all_members_a_cluster_may_have_fits_its_limit() -> None:
    members = tuple(_member(number) for number in range(MEMBERS_MAX))
    answer = JoinAccepted(ClusterId("ab" * 16), "c" * NAME_CHARS_MAX, LINEAGE, members)
    frames = FrameDecoder(JOIN_ANSWER_LIMITS).feed(encode(answer))
    assert decode(frames[0].kind, frames[0].header, (JoinAccepted,)) == answer


def test_summary_of_all_members_a_cluster_may_have_fits_the_bulk_limit() -> None:
    most = 2**62 - 1
    nodes = [NodeId(f"{number:032x}") for number in range(MEMBERS_MAX)]
    summary = PartSummary(
        LINEAGE,
        EntryIndex(most),
        Ballot(most, nodes[0]),
        0,
        tuple(Contribution(MemberId(node, Incarnation(most)), most, most) for node in nodes),
        RoundOutcome(most, 1.0, most),
        tuple(RoundReport(node, *[most] * 6) for node in nodes),
        (),
    )
    assert len(encode(summary)) < BULK_LIMITS.header_bytes_max


def test_entry_of_all_members_a_cluster_may_have_fits_the_control_limit() -> None:
    config = Config(tuple(_member(number) for number in range(MEMBERS_MAX)))
    reports = tuple(RoundReport(node, *[2**62 - 1] * 6) for node in config.nodes)
    entry = Entry(
        lineage=LINEAGE,
        index=EntryIndex(1),
        kind=EntryKind.CONFIG,
        previous=EntryId(b"\x01" * 16),
        state=StateDigest(b"\x01" * 16),
        result=ContentDigest(b"\x01" * 16),
        outcome=None,
        config=config,
        leader=config.nodes[0],
        job=None,
        delta=ViewDelta((), reports),
    )
    assert len(encode_control(LINEAGE, Commit(entry))) < CONTROL_LIMITS.header_bytes_max
