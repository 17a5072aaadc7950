"""Frames: how a stream of bytes from a peer is cut into messages.

A frame is a prefix of fixed size, a header, and a body. The prefix announces both lengths, and is
checked against the connection's limits before anything is allocated, so that what a peer can make
this node hold is bounded by the limits, and what a peer only *announces* costs nothing::

    magic "gW" | version u8 | kind u8 | header bytes u32 | body bytes u32     big-endian, 12 bytes
    header     | a record in msgpack (on control connections after 16 bytes of lineage)
    body       | raw bytes; only kinds that carry a body may have one
"""

import struct
from dataclasses import dataclass
from typing import Final

from greedw_p2p.errors import FrameTooLargeError, MalformedFrameError, PeerError

MAGIC: Final = b"gW"
FRAME_VERSION: Final = 1
"""Version of the prefix. Messages have their own, exchanged in Hello: a node of another protocol
version must still be able to read why it was refused."""

PREFIX_BYTES: Final = 12
FIELD_MAX: Final = 2**32 - 1

_PREFIX: Final = struct.Struct(">2sBBII")
assert _PREFIX.size == PREFIX_BYTES


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """What the header and the body of one frame may measure on one kind of connection."""

    header_bytes_max: int
    body_bytes_max: int

    def __post_init__(self) -> None:
        assert 0 < self.header_bytes_max <= FIELD_MAX
        assert 0 <= self.body_bytes_max <= FIELD_MAX


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prefix that was found within the limits."""

    kind: int
    header_bytes: int
    body_bytes: int

    @property
    def frame_bytes(self) -> int:
        """Size of the whole frame, prefix included."""
        return PREFIX_BYTES + self.header_bytes + self.body_bytes


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole frame; neither part has been looked at."""

    kind: int
    header: bytes
    body: bytes


def pack_prefix(kind: int, header_bytes: int, body_bytes: int) -> bytes:
    """Return the prefix of a frame of ours."""
    return _PREFIX.pack(MAGIC, FRAME_VERSION, kind, header_bytes, body_bytes)


def parse_prefix(data: bytes | bytearray | memoryview, limits: FrameLimits) -> Prefix:
    """Parse the first 12 bytes of ``data``; allocates nothing that depends on what they say.

    Raises:
        MalformedFrameError: fewer bytes, or they are not a prefix of this version.
        FrameTooLargeError: the prefix announces more than ``limits`` allow.
    """
    if len(data) < PREFIX_BYTES:
        raise MalformedFrameError(f"frame prefix of {len(data)} bytes instead of {PREFIX_BYTES}")
    magic, version, kind, header_bytes, body_bytes = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise MalformedFrameError(f"not a frame of greedw: starts with {magic.hex()}")
    if version != FRAME_VERSION:
        raise MalformedFrameError(f"frame version {version}, this node speaks {FRAME_VERSION}")
    if header_bytes > limits.header_bytes_max:
        raise FrameTooLargeError(
            f"frame of kind {kind} announces a header of {header_bytes} bytes, "
            f"at most {limits.header_bytes_max} are taken here"
        )
    if body_bytes > limits.body_bytes_max:
        raise FrameTooLargeError(
            f"frame of kind {kind} announces a body of {body_bytes} bytes, "
            f"at most {limits.body_bytes_max} are taken here"
        )
    return Prefix(kind, header_bytes, body_bytes)


class FrameDecoder:
    """Cuts one stream into frames, however the stream was split on its way.

    Rules:

    - Holds at most the bytes that have arrived of one unfinished frame.
    - A stream is trusted up to its first error and no further. The error ends it: every later
      ``feed`` raises it again, and frames that were completed in the failing call are dropped with
      it, because the link is about to be dropped and no message is owed to arrive.
    """

    def __init__(self, limits: FrameLimits) -> None:
        self._limits = limits
        self._pending = bytearray()
        # Parsed once per frame: a peer that sends byte by byte must not make us parse each time.
        self._prefix: Prefix | None = None
        self._failure: PeerError | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes held of a frame that is not whole yet; not 0 at end of file means truncated."""
        return len(self._pending)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Take the next bytes of the stream and return the frames that are whole now, in order.

        Raises:
            MalformedFrameError: the stream is not one of frames.
            FrameTooLargeError: a frame announces more than the limits allow.
        """
        if self._failure is not None:
            raise self._failure
        self._pending += data
        try:
            return self._cut()
        except PeerError as error:
            self._failure = error
            self._pending.clear()
            raise

    def _cut(self) -> list[Frame]:
        """Remove all whole frames from the front of the pending bytes."""
        frames: list[Frame] = []
        begin = 0
        with memoryview(self._pending) as view:
            while True:
                available = len(view) - begin
                if self._prefix is None:
                    if available < PREFIX_BYTES:
                        break
                    # A copy: an error's traceback would keep a slice alive, and the buffer locked.
                    first = bytes(view[begin : begin + PREFIX_BYTES])
                    self._prefix = parse_prefix(first, self._limits)
                prefix = self._prefix
                if available < prefix.frame_bytes:
                    break
                body_at = begin + PREFIX_BYTES + prefix.header_bytes
                end = begin + prefix.frame_bytes
                header = bytes(view[begin + PREFIX_BYTES : body_at])
                frames.append(Frame(prefix.kind, header, bytes(view[body_at:end])))
                self._prefix = None
                begin = end
        del self._pending[:begin]
        return frames
