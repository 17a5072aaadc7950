"""One bulk connection: frames in, each body straight into its destination; frames out, whole.

The link knows frames and nothing of attempts. For each frame it asks its owner where the body goes
and fills exactly that; what the owner does not want is read into a scratch buffer, and what it
cannot take yet is left in the socket, unread, until ``retry``. So the bytes that one link holds in
this process are bounded by one header.

Frames are written whole and in one call. A sender that gives up an attempt therefore never leaves
half a frame behind, and the connection can carry the next one.
"""

import asyncio
import socket
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, Protocol, cast

from greedw_p2p.errors import PeerError
from greedw_p2p.ids import NodeId
from greedw_p2p.limits import KIB
from greedw_p2p.wire.codec import BULK_LIMITS
from greedw_p2p.wire.framing import PREFIX_BYTES, parse_prefix

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

    def due_arrived(self, link: "BulkLink") -> memoryview | Verdict:
        """Return where the body of the frame that was due goes, or that it must wait."""
        ...

    def frame_announced(
        self, link: "BulkLink", kind: int, header: bytes, body_bytes: int
    ) -> memoryview | Verdict:
        """Return where any other frame's body goes (``body_bytes`` long), or what to do."""
        ...

    def frame_received(self, link: "BulkLink") -> None:
        """Take note that the frame's body is whole in its destination."""
        ...

    def link_lost(self, link: "BulkLink", reason: str) -> None:
        """Take note that the connection is gone. Called once; nothing comes after it."""
        ...


class BulkLink(asyncio.BufferedProtocol):
    """A bulk connection whose handshake is done.

    ``due`` is the whole head (prefix and header) of the frame that comes next, where the owner
    knows it, as it nearly always does. Then the head is read in one go and compared, not parsed.
    Should other frames come, shorter ones even, what was read too far is kept and read again from
    memory: frame by frame, part by part, as if it came from the socket only now.
    """

    def __init__(self, peer: NodeId, owner: LinkOwner) -> None:
        self.peer: Final = peer
        self.due: bytes | None = None
        self.sent_bytes = 0
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._prefix_bytes = memoryview(bytearray(PREFIX_BYTES))
        self._head_bytes = memoryview(b"")
        self._target = self._prefix_bytes
        self._filled = 0
        self._on_whole: Callable[[], None] = self._prefix_whole
        self._ahead: bytes = b""
        self._held: bytes = b""
        self._to_skip = 0
        self._is_lost = False
        self._closed = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Tell whether frames can still be sent."""
        transport = self._transport
        return not self._is_lost and transport is not None and not transport.is_closing()

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
        # uvloop then writes at once instead of at the end of the loop's turn, when all that can be
        # read has been: 6.5 instead of 10 ms for 0.8 MB down and up a chain of four on loopback.
        transport.set_write_buffer_limits(high=0)
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
        transport = self._transport
        if self._is_lost or transport is None or transport.is_closing():
            return
        if body is None:
            transport.write(head)
            self.sent_bytes += len(head)
        else:
            transport.writelines((head, body))
            self.sent_bytes += len(head) + len(body)

    def retry(self) -> None:
        """Ask the owner again about the frame that was held; nothing happens if there is none."""
        if not self._held:
            return
        try:
            self._judge(self._held)
            self._read_ahead()
        except PeerError as error:
            self.drop(error)
        if not self._held and self.is_open:
            self._open_transport().resume_reading()

    def forget(self) -> None:
        """Expect nothing, and skip the rest of a body that is coming in: its place is taken."""
        self.due = None
        if self._on_whole == self._body_whole:
            self._skip(len(self._target) - self._filled)

    def drop(self, error: PeerError) -> None:
        """Cut the connection because of what the peer did, and tell the owner."""
        if self._is_lost:
            return
        self._open_transport().abort()
        self._lose(f"{type(error).__name__}: {error}")

    async def close(self, timeout_s: float) -> None:
        """Send what is queued, close, and wait until the socket is gone; abort after a while."""
        if self._transport is None or self._closed.is_set():
            return
        self._stop_reading()
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
        if self._filled < len(self._target) and not self._is_other_head():
            return
        try:
            self._on_whole()
            if self._ahead:
                self._read_ahead()
        except PeerError as error:
            self.drop(error)
        if self._held and self.is_open:
            self._open_transport().pause_reading()

    def eof_received(self) -> bool:
        """Close at end of file: a bulk connection has no use for half of one."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owner, unless the end was its own wish."""
        self._closed.set()
        is_at_head = self._on_whole in (self._prefix_whole, self._head_whole) and not self._held
        at = "" if is_at_head and not self._filled else " in the middle of a frame"
        self._lose(f"connection lost{at}: {exc}" if exc else f"the peer closed the connection{at}")

    # -- reading ----------------------------------------------------------------------------

    def _expect_frame(self) -> None:
        """Aim at the next head: at the whole of it if one is due, else at its prefix."""
        if self.due is None or self._ahead:
            self._aim(self._prefix_bytes, self._prefix_whole)
            return
        if len(self._head_bytes) != len(self.due):
            self._head_bytes = memoryview(bytearray(len(self.due)))
        self._aim(self._head_bytes, self._head_whole)

    def _is_other_head(self) -> bool:
        """Tell whether what has come of a head shows already that it is not the one due."""
        if self._on_whole != self._head_whole:
            return False
        return self.due is None or not self.due.startswith(self._head_bytes[: self._filled])

    def _head_whole(self) -> None:
        """Take the head that is due; anything else, whole or not, is read again part by part."""
        head = bytes(self._head_bytes[: self._filled])
        if head == self.due:
            self._judge(head)
        else:
            self._ahead = head
            self._aim(self._prefix_bytes, self._prefix_whole)

    def _prefix_whole(self) -> None:
        """Check what the prefix announces before anything is allocated, and aim at the header."""
        prefix = parse_prefix(self._prefix_bytes, BULK_LIMITS)
        self._aim(memoryview(bytearray(prefix.header_bytes)), self._header_whole)

    def _header_whole(self) -> None:
        """Join the parts of the head."""
        self._judge(bytes(self._prefix_bytes) + bytes(self._target))

    def _judge(self, head: bytes) -> None:
        """Ask the owner where the body goes, and aim there; or stop until ``retry``."""
        self._held = b""
        body_bytes = 0
        if head == self.due:
            answer = self._owner.due_arrived(self)
        else:
            prefix = parse_prefix(head, BULK_LIMITS)
            body_bytes = prefix.body_bytes
            header = head[PREFIX_BYTES:]
            answer = self._owner.frame_announced(self, prefix.kind, header, body_bytes)
        if self._is_lost:
            return
        if isinstance(answer, memoryview):
            self._aim(answer, self._body_whole)
        elif answer is Verdict.SKIP:
            self._skip(body_bytes)
        else:
            self._held = head

    def _body_whole(self) -> None:
        """Pass the frame on, and only then aim at the next head: now it is known what is due."""
        self._on_whole = self._prefix_whole
        self._owner.frame_received(self)
        if not self._is_lost:
            self._expect_frame()

    def _skip(self, nbytes: int) -> None:
        """Read ``nbytes`` of a body into the scratch buffer, a piece at a time."""
        if not nbytes:
            self._expect_frame()
            return
        piece = min(nbytes, SCRATCH_BYTES)
        self._to_skip = nbytes - piece
        self._aim(_SCRATCH[:piece], self._skipped_whole)

    def _skipped_whole(self) -> None:
        """Skip the rest."""
        self._skip(self._to_skip)

    def _read_ahead(self) -> None:
        """Read from memory what was taken from the socket too early."""
        while self._ahead and not self._held and not self._is_lost:
            room = len(self._target) - self._filled
            piece, self._ahead = self._ahead[:room], self._ahead[room:]
            self._target[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            if self._filled == len(self._target):
                self._on_whole()

    def _aim(self, target: memoryview, on_whole: Callable[[], None]) -> None:
        """Read ``target`` full, then call ``on_whole``; at once if there is nothing to read."""
        self._target, self._filled, self._on_whole = target, 0, on_whole
        if not target:
            on_whole()

    # -- the end ----------------------------------------------------------------------------

    def _lose(self, reason: str) -> None:
        """Tell the owner, once, that this link is gone."""
        if self._is_lost:
            return
        self._stop_reading()
        self._owner.link_lost(self, reason)

    def _stop_reading(self) -> None:
        """Take nothing in any more: what was aimed at may soon have another use."""
        self._is_lost = True
        self.due, self._ahead, self._held = None, b"", b""
        self._aim(_SCRATCH, self._ignore)

    def _ignore(self) -> None:
        """Read over what a dying transport still delivers."""
        self._filled = 0

    def _open_transport(self) -> asyncio.Transport:
        """Return the transport, which is there from ``attach`` on."""
        assert self._transport is not None
        return self._transport


def _socket_of(transport: asyncio.Transport) -> socket.socket:
    """Return the transport's socket, for options only."""
    # uvloop gives a stand-in that has the methods of a socket but not its type.
    found: Any = transport.get_extra_info("socket")
    return cast("socket.socket", found)
