"""What a peer must not send to a data plane, and what comes of it."""

import pytest

from greedw_p2p.ids import Ballot, EntryIndex, Incarnation, MemberId
from greedw_p2p.log.entry import RoundOutcome
from greedw_p2p.node.events import AttemptFinished
from greedw_p2p.wire.codec import encode
from greedw_p2p.wire.framing import pack_prefix
from greedw_p2p.wire.messages import PartSummary, ResultSummary, StreamOpen

from .conftest import (
    CHUNK_BYTES,
    FIRST,
    GOOD_WAY_UP,
    KEY,
    LINEAGE,
    ME,
    OPEN,
    PEER,
    WRONG,
    Raw,
    chunk,
    part_summary,
    raw_order,
    run_raw,
    until,
)

WRONG_LENGTHS = {
    "shorter": OPEN + chunk(0, nbytes=CHUNK_BYTES - 4),
    "longer": OPEN + chunk(0, nbytes=CHUNK_BYTES + 4),
    "none": OPEN + chunk(0, nbytes=0),
}


@pytest.mark.parametrize("sent", WRONG_LENGTHS.values(), ids=WRONG_LENGTHS)
def test_a_body_of_another_length_than_the_plan_says_is_refused_and_the_link_dropped(
    sent: bytes,
) -> None:
    async def test(raw: Raw) -> None:
        await raw.connect()
        raw.begin(raw_order(is_root=True))
        raw.writer.write(sent)
        event = await raw.broken()
        assert event.peer == PEER.node
        assert event.reason.startswith("MalformedFrameError: chunk 0 of bucket 0 came with a body")
        assert f"the plan says {CHUNK_BYTES}" in event.reason
        assert event.phase == "reduce: waiting for chunk 0 of evil"
        await raw.end_of_file()

    run_raw(test)


FAULTS: dict[str, tuple[bytes, str]] = {
    "garbage": (b"GET / HTTP/1.1\r\n\r\n", "MalformedFrameError: not a frame of greedw"),
    "a huge header": (pack_prefix(65, 2**31, 0), "FrameTooLargeError"),
    "a huge body": (pack_prefix(65, 100, 2**32 - 1), "FrameTooLargeError"),
    "no header": (pack_prefix(65, 0, 0), "MalformedMessageError"),
    "an unknown kind": (pack_prefix(200, 1, 0) + b"\x90", "MalformedMessageError: kind 200"),
    "a control message": (pack_prefix(16, 1, 0) + b"\x90", "MalformedMessageError: a Heartbeat"),
    "a header that is none": (pack_prefix(65, 2, 0) + b"\xc1\xc1", "MalformedMessageError"),
    "a skipped chunk": (chunk(1), "MalformedMessageError: chunk 1 of bucket 0 came"),
    "a repeated chunk": (chunk(0) + chunk(0), "chunk 1 of bucket 0 was due"),
    "an early summary": (chunk(0) + part_summary(), "5 chunks missing"),
    "a second opening": (OPEN, "opened the same stream twice"),
    "a chunk after the last": (
        b"".join(chunk(place) for place in range(6)) + chunk(5),
        "came after the last chunk",
    ),
    "another tree": (chunk(0, key=(LINEAGE, EntryIndex(5), FIRST, 1)), "tree 1 has no streams"),
    "the wrong summary": (
        b"".join(chunk(place) for place in range(6))
        + encode(ResultSummary(*KEY, WRONG, RoundOutcome(1, 0.5, 1))),
        "wrong end of the edge",
    ),
    "a summary with a body": (
        encode(PartSummary(*KEY, (), RoundOutcome(1, 0.5, 1), (), ()), b"1234") + b"1234",
        "MalformedFrameError: PartSummary with a body of 4 bytes",
    ),
}


@pytest.mark.parametrize(("sent", "reason"), FAULTS.values(), ids=FAULTS)
def test_what_the_protocol_forbids_is_named_and_the_link_dropped(sent: bytes, reason: str) -> None:
    async def test(raw: Raw) -> None:
        await raw.connect()
        raw.begin(raw_order(is_root=True))
        raw.writer.write(OPEN + sent)
        event = await raw.broken()
        assert event.peer == PEER.node
        assert reason in event.reason
        await raw.end_of_file()
        assert raw.plane.phase() == "idle"

    run_raw(test)


def test_garbage_between_attempts_only_drops_the_link() -> None:
    async def test(raw: Raw) -> None:
        await raw.connect()
        raw.writer.write(b"x" * 100)
        await raw.end_of_file()
        assert raw.events.empty()
        await raw.connect()
        raw.begin(raw_order(is_root=True))
        raw.writer.write(GOOD_WAY_UP)
        assert isinstance(await raw.events.get(), AttemptFinished)

    run_raw(test)


def test_a_chunk_before_the_stream_was_opened_drops_the_link_and_the_child_may_come_again() -> None:
    async def test(raw: Raw) -> None:
        await raw.connect()
        raw.begin(raw_order(is_root=True))
        raw.writer.write(chunk(0))
        await raw.end_of_file()
        await raw.connect()
        raw.writer.write(GOOD_WAY_UP)
        assert isinstance(await raw.events.get(), AttemptFinished)

    run_raw(test)


@pytest.mark.parametrize(
    ("summary", "peer", "reason"),
    [
        (part_summary(start=0), ME, "the units overlap at 0"),
        (part_summary(units=2), ME, "3 units were summed, the round has 2"),
        (part_summary(member=ME), PEER, "is in the sum twice"),
        (part_summary(member=MemberId(PEER.node, Incarnation(2))), PEER, "takes no part"),
    ],
)
def test_root_refuses_sums_that_are_not_the_round_and_keeps_the_link(
    summary: bytes, peer: MemberId, reason: str
) -> None:
    async def test(raw: Raw) -> None:
        await raw.connect()
        raw.begin(raw_order(is_root=True))
        raw.writer.write(GOOD_WAY_UP[: -len(part_summary())] + summary)
        event = await raw.broken()
        assert event.peer == peer.node
        assert reason in event.reason
        raw.begin(raw_order(is_root=True, ballot=Ballot(1, ME.node)))
        key = (LINEAGE, EntryIndex(5), Ballot(1, ME.node), 0)
        raw.writer.write(encode(StreamOpen(*key, b"v" * 16, b"p" * 16)) + chunk(0, key=key))
        await until(lambda: "chunk 1 of evil" in raw.plane.phase())

    run_raw(test)
