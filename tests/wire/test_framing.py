import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedw_p2p.errors import FrameTooLargeError, MalformedFrameError, PeerError
from greedw_p2p.limits import KIB, MIB
from greedw_p2p.wire.framing import (
    FIELD_MAX,
    FRAME_VERSION,
    PREFIX_BYTES,
    Frame,
    FrameDecoder,
    FrameLimits,
    Prefix,
    pack_prefix,
    parse_prefix,
)

LIMITS = FrameLimits(header_bytes_max=64, body_bytes_max=200)
WIDEST = FrameLimits(header_bytes_max=FIELD_MAX, body_bytes_max=FIELD_MAX)

frames = st.builds(
    Frame,
    kind=st.integers(0, 255),
    header=st.binary(max_size=LIMITS.header_bytes_max),
    body=st.binary(max_size=LIMITS.body_bytes_max),
)


def packed(frame: Frame) -> bytes:
    prefix = pack_prefix(frame.kind, len(frame.header), len(frame.body))
    return prefix + frame.header + frame.body


def fed(decoder: FrameDecoder, pieces: list[bytes]) -> list[Frame]:
    return [frame for piece in pieces for frame in decoder.feed(piece)]


@given(sent=st.lists(frames, max_size=6), data=st.data())
def test_any_split_of_the_stream_yields_the_frames_in_order(
    sent: list[Frame], data: st.DataObject
) -> None:
    stream = b"".join(packed(frame) for frame in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert fed(FrameDecoder(LIMITS), pieces) == sent


@given(sent=st.lists(frames, max_size=4))
def test_stream_yields_the_frames_when_it_comes_byte_by_byte(sent: list[Frame]) -> None:
    stream = b"".join(packed(frame) for frame in sent)
    decoder = FrameDecoder(LIMITS)
    assert fed(decoder, [stream[i : i + 1] for i in range(len(stream))]) == sent
    assert decoder.pending_bytes == 0


@given(frame=frames, data=st.data())
def test_truncated_frame_yields_nothing_and_shows_what_is_held(
    frame: Frame, data: st.DataObject
) -> None:
    whole = packed(frame)
    length = data.draw(st.integers(0, len(whole) - 1))
    decoder = FrameDecoder(LIMITS)
    assert decoder.feed(whole[:length]) == []
    assert decoder.pending_bytes == length


@given(pieces=st.lists(st.binary(max_size=64), max_size=12))
def test_garbage_raises_a_peer_error_or_waits_for_more(pieces: list[bytes]) -> None:
    decoder = FrameDecoder(LIMITS)
    try:
        for piece in pieces:
            decoder.feed(piece)
    except PeerError:
        assert decoder.pending_bytes == 0


@given(
    frame=frames,
    position=st.integers(0, 2),
    wrong=st.integers(0, 255),
    split=st.integers(1, PREFIX_BYTES),
)
def test_wrong_magic_or_version_is_refused_however_it_is_split(
    frame: Frame, position: int, wrong: int, split: int
) -> None:
    stream = bytearray(packed(frame))
    if stream[position] == wrong:
        return
    stream[position] = wrong
    with pytest.raises(MalformedFrameError):
        fed(FrameDecoder(LIMITS), [bytes(stream[:split]), bytes(stream[split:])])


@given(kind=st.integers(0, 255), header=st.integers(0, FIELD_MAX), body=st.integers(0, FIELD_MAX))
def test_prefix_round_trips(kind: int, header: int, body: int) -> None:
    prefix = pack_prefix(kind, header, body)
    assert len(prefix) == PREFIX_BYTES
    assert parse_prefix(prefix, WIDEST) == Prefix(kind, header, body)
    assert parse_prefix(memoryview(prefix + b"rest"), WIDEST) == Prefix(kind, header, body)


def test_prefix_has_the_documented_bytes() -> None:
    assert FRAME_VERSION == 1
    assert pack_prefix(0x1B, 0x0102, 0x030405).hex() == "6757011b0000010200030405"


@given(data=st.binary(max_size=PREFIX_BYTES - 1))
def test_short_prefix_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        parse_prefix(data, LIMITS)


@pytest.mark.parametrize(
    ("header_bytes", "body_bytes", "named"),
    [
        (LIMITS.header_bytes_max + 1, 0, "header of 65 bytes"),
        (0, LIMITS.body_bytes_max + 1, "body of 201 bytes"),
        (FIELD_MAX, FIELD_MAX, "header of 4294967295 bytes"),
    ],
)
def test_announced_length_beyond_the_limit_is_refused_with_both_figures(
    header_bytes: int, body_bytes: int, named: str
) -> None:
    with pytest.raises(FrameTooLargeError, match=named):
        FrameDecoder(LIMITS).feed(pack_prefix(16, header_bytes, body_bytes))


def test_frame_at_the_limits_is_taken() -> None:
    frame = Frame(7, bytes(LIMITS.header_bytes_max), bytes(LIMITS.body_bytes_max))
    assert FrameDecoder(LIMITS).feed(packed(frame)) == [frame]


@given(good=frames)
def test_decoder_stays_failed_after_its_first_error(good: Frame) -> None:
    decoder = FrameDecoder(LIMITS)
    with pytest.raises(MalformedFrameError) as first:
        decoder.feed(b"GET / HTTP/1.1\r\n")
    with pytest.raises(MalformedFrameError) as second:
        decoder.feed(packed(good))
    assert second.value is first.value


def test_decoder_allocates_nothing_for_an_announced_length() -> None:
    decoder = FrameDecoder(WIDEST)
    prefix = pack_prefix(16, FIELD_MAX, FIELD_MAX)
    tracemalloc.start()
    try:
        assert decoder.feed(prefix) == []
        assert decoder.feed(bytes(100)) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * KIB


def test_decoder_holds_no_more_than_one_frame_of_a_long_stream() -> None:
    limits = FrameLimits(header_bytes_max=64, body_bytes_max=64 * KIB)
    stream = packed(Frame(18, bytes(64), bytes(64 * KIB))) * 4
    decoder = FrameDecoder(limits)
    tracemalloc.start()
    try:
        for _ in range(40):  # 10 MiB altogether, in pieces that never end where a frame ends
            for start in range(0, len(stream), 5_000):
                decoder.feed(stream[start : start + 5_000])
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoder.pending_bytes == 0
    assert held < 4 * KIB + 64 * KIB
    assert peak < 0.5 * MIB
