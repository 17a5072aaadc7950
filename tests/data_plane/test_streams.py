"""What a data plane reads and writes on one connection, byte by byte."""

import asyncio
import tracemalloc

import numpy as np
import pytest
import xxhash

from greedw_daemon.data_plane.plane import Regions
from greedw_p2p.ids import (
    Ballot,
    ContentDigest,
    EntryIndex,
)
from greedw_p2p.limits import CHUNK_BYTES_MAX, MIB, RECEIVE_SLOTS
from greedw_p2p.log.entry import RoundOutcome
from greedw_p2p.node.events import AttemptFinished
from greedw_p2p.reduction.layout import BucketLayout
from greedw_p2p.wire.codec import encode
from greedw_p2p.wire.messages import Chunk, Contribution, PartSummary, ResultSummary, StreamOpen

from .conftest import (
    CHUNKS,
    FIRST,
    GOOD_WAY_UP,
    KEY,
    LINEAGE,
    ME,
    OLDER,
    OPEN,
    PEER,
    RAW_LAYOUT,
    WRONG,
    Raw,
    chunk,
    raw_order,
    run_raw,
    until,
)


@pytest.mark.parametrize("step", [1, 7, 500, 100_000])
def test_frames_are_taken_however_the_stream_is_cut(step: int) -> None:
    async def test(raw: Raw) -> None:
        await raw.connect()
        raw.begin(raw_order(is_root=True))
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

    run_raw(test)


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
        raw.begin(raw_order(is_root=True))
        raw.writer.write(leftover + GOOD_WAY_UP[: len(OPEN)] + leftover + leftover)
        raw.writer.write(GOOD_WAY_UP[len(OPEN) :])
        assert isinstance(await raw.events.get(), AttemptFinished)
        assert (raw.result == 2.0).all()

    run_raw(test)


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
        raw.begin(raw_order(is_root=True, index=late, ballot=key[2]))
        for at in range(0, len(stream), step):
            raw.writer.write(stream[at : at + step])
            await asyncio.sleep(0)
        assert isinstance(await raw.events.get(), AttemptFinished)
        assert (raw.result == 2.0).all()

    run_raw(test)


def test_a_closed_data_plane_takes_neither_attempts_nor_connections() -> None:
    async def test(raw: Raw) -> None:
        await raw.plane.close()
        await raw.connect()
        await raw.end_of_file()
        raw.begin(raw_order(is_root=False))
        assert raw.plane.phase() == "idle"

    run_raw(test)


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
        raw.begin(raw_order(is_root=False))
        digest = ContentDigest(xxhash.xxh3_128(bytes(RAW_LAYOUT.nbytes)).digest())
        await answer_as_parent(raw, digest=digest)
        event = await raw.events.get()
        assert event == AttemptFinished(
            EntryIndex(5),
            FIRST,
            digest,
            RoundOutcome(2, 1.0, 2),
        )
        assert (raw.result == 0.0).all()

    run_raw(test)


def test_a_result_with_another_digest_than_the_root_named_breaks_and_names_the_link() -> None:
    async def test(raw: Raw) -> None:
        await raw.connect()
        raw.begin(raw_order(is_root=False))
        await answer_as_parent(raw, digest=WRONG)
        event = await raw.broken()
        assert event.peer == PEER.node
        assert "the result over the link from evil has digest" in event.reason
        assert WRONG.hex() in event.reason

    run_raw(test)


def test_a_result_that_comes_before_it_can_is_refused() -> None:
    async def test(raw: Raw) -> None:
        await raw.connect()
        raw.begin(raw_order(is_root=False, window_chunks=2))
        raw.writer.write(OPEN + chunk(0) + chunk(1) + chunk(2) + chunk(3) + chunk(4))
        raw.plane.cancel(EntryIndex(5), FIRST)
        raw.plane.begin(
            raw_order(is_root=False, ballot=Ballot(1, ME.node)),
            Regions(np.zeros(RAW_LAYOUT.elements, np.float32), raw.result),
        )
        key = (LINEAGE, EntryIndex(5), Ballot(1, ME.node), 0)
        raw.writer.write(encode(StreamOpen(*key, b"v" * 16, b"p" * 16)) + chunk(0, key=key))
        event = await raw.broken()
        assert "came before it was summed here" in event.reason

    run_raw(test)


def test_a_body_that_is_coming_in_when_its_attempt_is_replaced_never_reaches_the_result() -> None:
    async def test(raw: Raw) -> None:
        await raw.connect()
        raw.begin(raw_order(is_root=False))
        frame = chunk(0, value=7.0)
        raw.writer.write(OPEN + frame[:-500])
        await until(lambda: raw.result[0] != 0.0)
        raw.begin(raw_order(is_root=False, ballot=Ballot(1, ME.node)))
        raw.result[:] = 0.0
        key = (LINEAGE, EntryIndex(5), Ballot(1, ME.node), 0)
        raw.writer.write(frame[-500:] + encode(StreamOpen(*key, b"v" * 16, b"p" * 16)))
        raw.writer.write(chunk(0, key=key, value=1.0))
        await until(lambda: raw.result[0] != 0.0)
        assert set(raw.result.tolist()) == {0.0, 1.0}

    run_raw(test)


def test_a_child_with_full_slots_is_not_read_and_memory_stays_bounded() -> None:
    big = BucketLayout((4 * MIB,))
    span_bytes = 65_536
    chunks = big.nbytes // span_bytes

    async def test(raw: Raw) -> None:
        await raw.connect()
        large = raw_order(is_root=True, layout=big, chunk_bytes=span_bytes)
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

    run_raw(test)
