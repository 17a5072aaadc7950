"""One bulk connection: frames in, each body straight into its destination; frames out, whole.

The link knows frames and nothing of attempts. For each frame it asks its owner where the body goes
and fills exactly that; what the owner does not want is read into a scratch buffer, and what it
cannot take yet is left in the socket, unread, until ``retry``. So the bytes that one link holds in
this process are bounded by one header.

Frames are written whole and in one call. A sender that gives up an attempt therefore never leaves
half a frame behind, and the connection can carry the next one.
"""

import asyncio
import logging
import socket
from enum import Enum, auto
from typing import Any, Final, Protocol, cast

from greedw_p2p.errors import PeerError
from greedw_p2p.ids import NodeId
from greedw_p2p.limits import KIB
from greedw_p2p.wire.codec import BULK_LIMITS
from greedw_p2p.wire.framing import PREFIX_BYTES, Prefix, parse_prefix

logger = logging.getLogger(__name__)

SCRATCH_BYTES: Final = 64 * KIB
"""Unwanted bodies are read in pieces of this size. What is in it is never looked at, so one buffer
serves all links."""

_SCRATCH: Final = memoryview(bytearray(SCRATCH_BYTES))


class Verdict(Enum):
    """What to do with a frame that gets no destination."""

    SKIP = auto()
    """Read its body and forget it."""

    HOLD = auto()
    """Read no further until ``retry`` is called."""


class LinkOwner(Protocol):
    """Who decides what the frames of a link mean. A PeerError raised here drops the link."""

    def frame_announced(
        self, link: "BulkLink", kind: int, header: bytes, body_bytes: int
    ) -> memoryview | Verdict:
        """Return where the body goes (exactly ``body_bytes`` long), or what to do instead."""
        ...

    def frame_received(self, link: "BulkLink") -> None:
        """Take note that the announced frame's body is whole in its destination."""
        ...

    def link_lost(self, link: "BulkLink", reason: str) -> None:
        """Take note that the connection is gone. Called once; nothing comes after it."""
        ...


class _Stage(Enum):
    """What the bytes that come next are."""

    PREFIX = auto()
    HEADER = auto()
    BODY = auto()
    SKIPPED = auto()
    HELD = auto()
    LOST = auto()


class BulkLink(asyncio.BufferedProtocol):
    """A bulk connection whose handshake is done."""

    def __init__(self, peer: NodeId, owner: LinkOwner) -> None:
        self.peer: Final = peer
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._prefix_bytes = memoryview(bytearray(PREFIX_BYTES))
        self._prefix = Prefix(0, 0, 0)
        self._header = b""
        self._stage = _Stage.PREFIX
        self._target = self._prefix_bytes
        self._filled = 0
        self._to_skip = 0
        self._closed = asyncio.Event()
        self.sent_bytes = 0

    @property
    def is_open(self) -> bool:
        """Tell whether frames can still be sent."""
        return (
            self._stage is not _Stage.LOST
            and self._transport is not None
            and not self._transport.is_closing()
        )

    @property
    def _is_held(self) -> bool:
        """Tell whether reading is paused before a body."""
        return self._stage is _Stage.HELD

    def attach(self, transport: asyncio.Transport) -> None:
        """Take over a transport whose reading is paused, and start to read it."""
        self._transport = transport
        transport.set_protocol(self)
        if transport.is_closing():
            # The old protocol has been told; nobody would ever tell this one.
            self._lose("the connection was closed right after the handshake")
            self._closed.set()
            return
        _socket_of(transport).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.resume_reading()

    def set_send_buffer(self, nbytes: int) -> None:
        """Bound the bytes in the kernel's queue; 0 leaves that to the kernel.

        The kernel doubles the value, for its own needs.
        """
        if nbytes and self.is_open:
            sock = _socket_of(self._open_transport())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, nbytes)

    def send(self, head: bytes, body: memoryview | None = None) -> None:
        """Queue one whole frame. ``body`` is not copied: it must stay as it is until sent."""
        if not self.is_open:
            return
        if body is None:
            self._open_transport().write(head)
            self.sent_bytes += len(head)
        else:
            self._open_transport().writelines((head, body))
            self.sent_bytes += len(head) + body.nbytes

    def retry(self) -> None:
        """Ask the owner again about the frame that was held; nothing happens if there is none."""
        if not self._is_held:
            return
        try:
            self._announce()
        except PeerError as error:
            self.drop(error)
            return
        if not self._is_held and self.is_open:
            self._open_transport().resume_reading()

    def skip_body(self) -> None:
        """Forget the frame whose body is just coming in: its destination has another use now."""
        if self._stage is _Stage.BODY:
            self._skip(len(self._target) - self._filled)

    def drop(self, error: PeerError) -> None:
        """Cut the connection because of what the peer did, and tell the owner."""
        if self._stage is _Stage.LOST:
            return
        self._open_transport().abort()
        self._lose(f"{type(error).__name__}: {error}")

    async def close(self, timeout_s: float) -> None:
        """Send what is queued, close, and wait until the socket is gone; abort after a while."""
        if self._transport is None or self._closed.is_set():
            return
        self._aim(_Stage.LOST, _SCRATCH)
        self._transport.close()
        try:
            async with asyncio.timeout(timeout_s):
                await self._closed.wait()
        except TimeoutError:
            self._transport.abort()
            await self._closed.wait()

    # -- asyncio.BufferedProtocol -----------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go: exactly the rest of what is being read."""
        del sizehint  # the frame decides
        return self._target[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Go on when what was being read is whole."""
        self._filled += nbytes
        if self._stage is _Stage.LOST:
            self._filled = 0
        if self._filled < len(self._target):
            return
        try:
            self._next_stage()
        except PeerError as error:
            self.drop(error)

    def eof_received(self) -> bool:
        """Close at end of file: a bulk connection has no use for half of one."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owner, unless the end was its own wish."""
        self._closed.set()
        at = (
            "" if self._stage is _Stage.PREFIX and not self._filled else " in the middle of a frame"
        )
        self._lose(f"connection lost{at}: {exc}" if exc else f"the peer closed the connection{at}")

    # -- reading ----------------------------------------------------------------------------

    def _next_stage(self) -> None:
        """Interpret what is whole now, and aim at what follows it."""
        match self._stage:
            case _Stage.PREFIX:
                self._prefix = parse_prefix(self._prefix_bytes, BULK_LIMITS)
                self._aim(_Stage.HEADER, memoryview(bytearray(self._prefix.header_bytes)))
                if not self._prefix.header_bytes:
                    self._next_stage()
            case _Stage.HEADER:
                self._header = bytes(self._target)
                self._announce()
                if self._is_held:
                    self._open_transport().pause_reading()
            case _Stage.BODY:
                self._expect_frame()
                self._owner.frame_received(self)
            case _Stage.SKIPPED:
                self._skip(self._to_skip)
            case _Stage.HELD:
                raise AssertionError("bytes were read although reading was paused")
            case _Stage.LOST:
                pass

    def _announce(self) -> None:
        """Ask the owner where the body goes."""
        body_bytes = self._prefix.body_bytes
        answer = self._owner.frame_announced(self, self._prefix.kind, self._header, body_bytes)
        if self._stage is _Stage.LOST:
            return
        if isinstance(answer, memoryview):
            assert answer.nbytes == body_bytes
            self._aim(_Stage.BODY, answer)
            if not body_bytes:
                self._next_stage()
        elif answer is Verdict.SKIP:
            self._skip(body_bytes)
        else:
            self._stage = _Stage.HELD

    def _skip(self, nbytes: int) -> None:
        """Read ``nbytes`` of a body into the scratch buffer, a piece at a time."""
        if not nbytes:
            self._expect_frame()
            return
        piece = min(nbytes, SCRATCH_BYTES)
        self._to_skip = nbytes - piece
        self._aim(_Stage.SKIPPED, _SCRATCH[:piece])

    def _expect_frame(self) -> None:
        """Aim at the next prefix."""
        self._header = b""
        self._aim(_Stage.PREFIX, self._prefix_bytes)

    def _aim(self, stage: _Stage, target: memoryview) -> None:
        """Read ``target`` full; nothing of it is there yet."""
        self._stage, self._target, self._filled = stage, target, 0

    def _lose(self, reason: str) -> None:
        """Tell the owner, once, that this link is gone."""
        if self._stage is _Stage.LOST:
            return
        # A last read of a dying transport must not reach memory that has another use.
        self._aim(_Stage.LOST, _SCRATCH)
        self._owner.link_lost(self, reason)

    def _open_transport(self) -> asyncio.Transport:
        """Return the transport, which is there from ``attach`` on."""
        assert self._transport is not None
        return self._transport


def _socket_of(transport: asyncio.Transport) -> socket.socket:
    """Return the transport's socket, for options only."""
    # uvloop gives a stand-in that has the methods of a socket but not its type.
    found: Any = transport.get_extra_info("socket")
    return cast("socket.socket", found)
