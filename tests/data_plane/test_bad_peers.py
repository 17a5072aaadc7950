"""What a peer may send to a data plane, byte by byte, and what comes of it."""

import asyncio
import contextlib
import tracemalloc
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import uvloop
import xxhash

from greedw_daemon.data_plane import AttemptOrder, DataPlane, Regions
from greedw_p2p.ids import (
    Ballot,
    ContentDigest,
    EntryIndex,
    Incarnation,
    LineageId,
    MemberId,
    NodeId,
)
from greedw_p2p.limits import CHUNK_BYTES_MAX, MIB, RECEIVE_SLOTS
from greedw_p2p.log.entry import RoundOutcome
from greedw_p2p.node.events import AttemptBroken, AttemptFinished
from greedw_p2p.reduction.layout import BucketLayout
from greedw_p2p.view import RoundReport
from greedw_p2p.wire.codec import BULK_LIMITS, BULK_TYPES, decode, encode
from greedw_p2p.wire.framing import PREFIX_BYTES, pack_prefix, parse_prefix
from greedw_p2p.wire.messages import (
    Chunk,
    Contribution,
    PartSummary,
    ResultSummary,
    StreamOpen,
)

WAIT_S = 20.0
LINEAGE = LineageId("ab" * 16)
ME = MemberId(NodeId("0" * 32), Incarnation(1))
PEER = MemberId(NodeId("f" * 32), Incarnation(1))
FIRST = Ballot(0, ME.node)
LAYOUT = BucketLayout((1024, 512))
CHUNK_BYTES = 1024
CHUNKS = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
WRONG = ContentDigest(b"x" * 16)
KEY = (LINEAGE, EntryIndex(5), FIRST, 0)

OPEN = encode(StreamOpen(*KEY, b"v" * 16, b"p" * 16))


def chunk(
    place: int,
    *,
    nbytes: int = CHUNK_BYTES,
    key: tuple[LineageId, EntryIndex, Ballot, int] = KEY,
    value: float = 1.0,
) -> bytes:
    """A chunk's frame, whole."""
    bucket, number = CHUNKS[place]
    body = np.full(nbytes // 4 + 1, value, np.float32).tobytes()[:nbytes]
    return encode(Chunk(*key, bucket, number), body) + body


def part_summary(member: MemberId = PEER, start: int = 1, units: int = 1) -> bytes:
    outcome = RoundOutcome(1, 0.5, 1)
    return encode(PartSummary(*KEY, (Contribution(member, start, units),), outcome, (), ()))


def order(*, is_root: bool, **changes: Any) -> AttemptOrder:
    base = AttemptOrder(
        lineage=LINEAGE,
        index=EntryIndex(5),
        ballot=FIRST,
        tree=0,
        view_digest=b"v" * 16,
        plan_digest=b"p" * 16,
        me=ME,
        parent=None if is_root else PEER.node,
        children=(PEER.node,) if is_root else (),
        layout=LAYOUT,
        chunk_bytes=CHUNK_BYTES,
        window_chunks=64,
        send_buffer_bytes=65_536,
        divisor=2,
        total_units=2,
        participants=(ME, PEER),
    )
    return replace(base, **changes)


class Raw:
    """One end of a connection whose other end the data plane has."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[AttemptFinished | AttemptBroken] = asyncio.Queue()
        self.plane = DataPlane(
            me=ME,
            dial=self._dial,
            name_of=lambda node: "me" if node == ME.node else "evil",
            on_finished=self.events.put_nowait,
            on_broken=self.events.put_nowait,
        )
        self.result = np.zeros(LAYOUT.elements, np.float32)
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> None:
        """Open a connection and let the data plane adopt it."""
        loop = asyncio.get_running_loop()
        accepted: asyncio.Future[asyncio.Transport] = loop.create_future()

        class Accepting(asyncio.Protocol):
            def connection_made(self, transport: Any) -> None:
                transport.pause_reading()
                accepted.set_result(transport)

        server = await loop.create_server(Accepting, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        self.writers.append(self.writer)
        self.adopted = await accepted
        server.close()
        await server.wait_closed()
        self.plane.adopt(PEER, self.adopted)

    def begin(self, order: AttemptOrder) -> None:
        own = np.full(LAYOUT.elements, 3.0, np.float32)
        self.plane.begin(order, Regions(own, self.result))
        for bucket in range(len(order.layout.buckets)):
            self.plane.own_bucket_ready(order.index, order.ballot, bucket)
        self.plane.own_finished(
            order.index,
            order.ballot,
            Contribution(ME, 0, 1),
            RoundOutcome(1, 0.5, 1),
            RoundReport(ME.node, 1, 2, 3, 4, 5),
            (),
        )

    async def read_frame(self) -> tuple[Any, bytes]:
        prefix = parse_prefix(await self.reader.readexactly(PREFIX_BYTES), BULK_LIMITS)
        header = await self.reader.readexactly(prefix.header_bytes)
        body = await self.reader.readexactly(prefix.body_bytes)
        return decode(prefix.kind, header, BULK_TYPES), body

    async def end_of_file(self) -> None:
        """Wait until the data plane has dropped the connection."""
        try:
            while await self.reader.read(65_536):
                pass
        except ConnectionError:
            pass

    async def broken(self) -> AttemptBroken:
        event = await self.events.get()
        assert isinstance(event, AttemptBroken), event
        return event

    async def close(self) -> None:
        await self.plane.close()
        for writer in self.writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _dial(self, node: NodeId, tree: int) -> asyncio.Transport:
        await self.connect()
        raise ConnectionRefusedError("the data plane has just adopted one")


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something holds; ``run`` bounds the wait."""
    while True:
        if condition():
            return
        await asyncio.sleep(0)


def run(test: Callable[[Raw], Awaitable[None]]) -> None:
    async def scenario() -> None:
        raw = Raw()
        try:
            await test(raw)
        finally:
            await raw.close()

    uvloop.run(asyncio.wait_for(scenario(), WAIT_S))


GOOD_WAY_UP = OPEN + b"".join(chunk(place) for place in range(6)) + part_summary()


@pytest.mark.parametrize("step", [1, 7, 500, 100_000])
def test_frames_are_taken_however_the_stream_is_cut(step: int) -> None:
    async def test(raw: Raw) -> None:
        await raw.connect()
        raw.begin(order(is_root=True))
        for at in range(0, len(GOOD_WAY_UP), step):
            raw.writer.write(GOOD_WAY_UP[at : at + step])
            await asyncio.sleep(0)
        event = await raw.events.get()
        assert isinstance(event, AttemptFinished)
        assert (raw.result == 2.0).all()
        assert isinstance((await raw.read_frame())[0], StreamOpen)
        for place in range(6):
            message, body = await raw.read_frame()
            assert (message.bucket, message.chunk) == CHUNKS[place]
            assert body == np.full(256, 2.0, np.float32).tobytes()
        message, _ = await raw.read_frame()
        assert message == ResultSummary(*KEY, event.digest, RoundOutcome(2, 1.0, 2))

    run(test)


OLDER = (LINEAGE, EntryIndex(4), FIRST, 0)


@pytest.mark.parametrize(
    "leftover",
    [
        chunk(3, key=OLDER),
        chunk(3, key=OLDER, nbytes=0),
        chunk(3, key=OLDER, nbytes=CHUNK_BYTES_MAX),
        encode(StreamOpen(*OLDER, b"other view", b"other plan")),
        encode(ResultSummary(*OLDER, WRONG, RoundOutcome(1, 0.5, 1))),
    ],
)
def test_leftovers_of_an_older_attempt_are_skipped_whatever_they_hold(leftover: bytes) -> None:
    async def test(raw: Raw) -> None:
        await raw.connect()
        raw.begin(order(is_root=True))
        raw.writer.write(leftover + GOOD_WAY_UP[: len(OPEN)] + leftover + leftover)
        raw.writer.write(GOOD_WAY_UP[len(OPEN) :])
        assert isinstance(await raw.events.get(), AttemptFinished)
        assert (raw.result == 2.0).all()

    run(test)


@pytest.mark.parametrize("step", [1, 50, 100_000])
def test_leftovers_shorter_than_the_head_that_is_due_are_skipped_and_nothing_after_them_is_lost(
    step: int,
) -> None:
    late = EntryIndex(2**40)
    key = (LINEAGE, late, Ballot(2**40, ME.node), 0)
    leftover = encode(ResultSummary(*OLDER, ContentDigest(b""), RoundOutcome(1, 0.5, 1)))
    assert len(leftover) < len(encode(Chunk(*key, 0, 0)))
    frames = [encode(StreamOpen(*key, b"v" * 16, b"p" * 16))]
    frames += [chunk(place, key=key) for place in range(6)]
    outcome = RoundOutcome(1, 0.5, 1)
    frames += [encode(PartSummary(*key, (Contribution(PEER, 1, 1),), outcome, (), ()))]
    stream = b"".join(frame + number % 4 * leftover for number, frame in enumerate(frames))

    async def test(raw: Raw) -> None:
        await raw.connect()
        raw.begin(order(is_root=True, index=late, ballot=key[2]))
        for at in range(0, len(stream), step):
            raw.writer.write(stream[at : at + step])
            await asyncio.sleep(0)
        assert isinstance(await raw.events.get(), AttemptFinished)
        assert (raw.result == 2.0).all()

    run(test)


def test_a_closed_data_plane_takes_neither_attempts_nor_connections() -> None:
    async def test(raw: Raw) -> None:
        await raw.plane.close()
        await raw.connect()
        await raw.end_of_file()
        raw.begin(order(is_root=False))
        assert raw.plane.phase() == "idle"

    run(test)


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
        raw.begin(order(is_root=True))
        raw.writer.write(sent)
        event = await raw.broken()
        assert event.peer == PEER.node
        assert event.reason.startswith("MalformedFrameError: chunk 0 of bucket 0 came with a body")
        assert f"the plan says {CHUNK_BYTES}" in event.reason
        assert event.phase == "reduce: waiting for chunk 0 of evil"
        await raw.end_of_file()

    run(test)


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
        raw.begin(order(is_root=True))
        raw.writer.write(OPEN + sent)
        event = await raw.broken()
        assert event.peer == PEER.node
        assert reason in event.reason
        await raw.end_of_file()
        assert raw.plane.phase() == "idle"

    run(test)


def test_garbage_between_attempts_only_drops_the_link() -> None:
    async def test(raw: Raw) -> None:
        await raw.connect()
        raw.writer.write(b"x" * 100)
        await raw.end_of_file()
        assert raw.events.empty()
        await raw.connect()
        raw.begin(order(is_root=True))
        raw.writer.write(GOOD_WAY_UP)
        assert isinstance(await raw.events.get(), AttemptFinished)

    run(test)


def test_a_chunk_before_the_stream_was_opened_drops_the_link_and_the_child_may_come_again() -> None:
    async def test(raw: Raw) -> None:
        await raw.connect()
        raw.begin(order(is_root=True))
        raw.writer.write(chunk(0))
        await raw.end_of_file()
        await raw.connect()
        raw.writer.write(GOOD_WAY_UP)
        assert isinstance(await raw.events.get(), AttemptFinished)

    run(test)


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
        raw.begin(order(is_root=True))
        raw.writer.write(GOOD_WAY_UP[: -len(part_summary())] + summary)
        event = await raw.broken()
        assert event.peer == peer.node
        assert reason in event.reason
        raw.begin(order(is_root=True, ballot=Ballot(1, ME.node)))
        key = (LINEAGE, EntryIndex(5), Ballot(1, ME.node), 0)
        raw.writer.write(encode(StreamOpen(*key, b"v" * 16, b"p" * 16)) + chunk(0, key=key))
        await until(lambda: "chunk 1 of evil" in raw.plane.phase())

    run(test)


async def answer_as_parent(raw: Raw, *, digest: ContentDigest) -> None:
    """Take everything a leaf sends, and answer with a result of zeros."""
    assert isinstance((await raw.read_frame())[0], StreamOpen)
    raw.writer.write(OPEN)
    for place in range(6):
        message, body = await raw.read_frame()
        assert (message.bucket, message.chunk) == CHUNKS[place]
        assert body == np.full(256, 3.0, np.float32).tobytes()
        raw.writer.write(chunk(place, value=0.0))
    message, _ = await raw.read_frame()
    assert message.contributions == (Contribution(ME, 0, 1),)
    raw.writer.write(encode(ResultSummary(*KEY, digest, RoundOutcome(2, 1.0, 2))))


def test_a_leaf_adopts_the_connection_that_its_parent_opened() -> None:
    async def test(raw: Raw) -> None:
        await raw.connect()
        raw.begin(order(is_root=False))
        digest = ContentDigest(xxhash.xxh3_128(bytes(LAYOUT.nbytes)).digest())
        await answer_as_parent(raw, digest=digest)
        event = await raw.events.get()
        assert event == AttemptFinished(
            EntryIndex(5),
            FIRST,
            digest,
            RoundOutcome(2, 1.0, 2),
        )
        assert (raw.result == 0.0).all()

    run(test)


def test_a_result_with_another_digest_than_the_root_named_breaks_and_names_the_link() -> None:
    async def test(raw: Raw) -> None:
        await raw.connect()
        raw.begin(order(is_root=False))
        await answer_as_parent(raw, digest=WRONG)
        event = await raw.broken()
        assert event.peer == PEER.node
        assert "the result over the link from evil has digest" in event.reason
        assert WRONG.hex() in event.reason

    run(test)


def test_a_result_that_comes_before_it_can_is_refused() -> None:
    async def test(raw: Raw) -> None:
        await raw.connect()
        raw.begin(order(is_root=False, window_chunks=2))
        raw.writer.write(OPEN + chunk(0) + chunk(1) + chunk(2) + chunk(3) + chunk(4))
        raw.plane.cancel(EntryIndex(5), FIRST)
        raw.plane.begin(
            order(is_root=False, ballot=Ballot(1, ME.node)),
            Regions(np.zeros(LAYOUT.elements, np.float32), raw.result),
        )
        key = (LINEAGE, EntryIndex(5), Ballot(1, ME.node), 0)
        raw.writer.write(encode(StreamOpen(*key, b"v" * 16, b"p" * 16)) + chunk(0, key=key))
        event = await raw.broken()
        assert "came before it was summed here" in event.reason

    run(test)


def test_a_body_that_is_coming_in_when_its_attempt_is_replaced_never_reaches_the_result() -> None:
    async def test(raw: Raw) -> None:
        await raw.connect()
        raw.begin(order(is_root=False))
        frame = chunk(0, value=7.0)
        raw.writer.write(OPEN + frame[:-500])
        await until(lambda: raw.result[0] != 0.0)
        raw.begin(order(is_root=False, ballot=Ballot(1, ME.node)))
        raw.result[:] = 0.0
        key = (LINEAGE, EntryIndex(5), Ballot(1, ME.node), 0)
        raw.writer.write(frame[-500:] + encode(StreamOpen(*key, b"v" * 16, b"p" * 16)))
        raw.writer.write(chunk(0, key=key, value=1.0))
        await until(lambda: raw.result[0] != 0.0)
        assert set(raw.result.tolist()) == {0.0, 1.0}

    run(test)


def test_a_child_with_full_slots_is_not_read_and_memory_stays_bounded() -> None:
    big = BucketLayout((4 * MIB,))
    span_bytes = 65_536
    chunks = big.nbytes // span_bytes

    async def test(raw: Raw) -> None:
        await raw.connect()
        large = order(is_root=True, layout=big, chunk_bytes=span_bytes)
        regions = Regions(np.ones(big.elements, np.float32), np.zeros(big.elements, np.float32))
        raw.plane.begin(large, regions)
        body = np.ones(span_bytes // 4, np.float32).tobytes()
        raw.writer.write(OPEN)
        tracemalloc.start()
        sent = 0
        try:
            for number in range(chunks):
                raw.writer.write(encode(Chunk(*KEY, 0, number), body) + body)
                await asyncio.wait_for(raw.writer.drain(), 0.5)
                sent += 1
        except TimeoutError:
            pass
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        queued = raw.writer.transport.get_write_buffer_size()
        assert RECEIVE_SLOTS <= sent < chunks, "the child was read on and on"
        assert held - queued < MIB
        assert raw.plane.phase() == "compute: waiting for chunk 0 of this node"
        raw.plane.own_bucket_ready(EntryIndex(5), FIRST, 0)
        for number in range(sent + 1, chunks):
            raw.writer.write(encode(Chunk(*KEY, 0, number), body) + body)
            await raw.writer.drain()
            while raw.writer.transport.get_write_buffer_size() > 4 * span_bytes:
                await raw.reader.read(MIB)
        while "the summary" not in raw.plane.phase():
            await raw.reader.read(MIB)
        assert (regions.result == 1.0).all()

    run(test)
