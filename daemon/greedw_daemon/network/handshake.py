"""Handshakes: the first frames of every connection, one at a time and not a byte too many.

What follows a handshake belongs to another reader (the control decoder, the data plane), so a
handshake reads exactly the frame it waits for, and reading is paused in between. Each buffer handed
to the transport is the rest of that frame; this holds under asyncio, uvloop and TLS alike.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Final, cast

from greedw_p2p.config import Address
from greedw_p2p.errors import HandshakeError, PeerError
from greedw_p2p.wire.codec import HANDSHAKE_LIMITS, decode, encode
from greedw_p2p.wire.framing import PREFIX_BYTES, Frame, FrameLimits, parse_prefix
from greedw_p2p.wire.messages import HandshakeMessage, Hello, RefusalCode, Refused, Welcome

HANDSHAKE_S: Final = 3.0
"""Limit from the first packet to the last frame of a handshake: ten round trips of 300 ms."""

_DRAIN_BYTES: Final = 4096


class RefusedError(HandshakeError):
    """The peer answered, and refused; ``code`` says why."""

    def __init__(self, code: RefusalCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class HandshakeStream(asyncio.BufferedProtocol):
    """A connection during its handshake."""

    def __init__(self, on_open: "Callable[[HandshakeStream], None] | None" = None) -> None:
        self._on_open = on_open
        self._transport: asyncio.Transport | None = None
        self._target = memoryview(bytearray(PREFIX_BYTES))
        self._filled = 0
        self._waiter: asyncio.Future[None] | None = None
        self._lost: str | None = None
        self._is_draining = False

    # -- for the transport -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; it reads the first prefix at once."""
        self._transport = cast("asyncio.Transport", transport)
        if self._on_open is not None:
            self._on_open(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return exactly the room that is left of what is waited for."""
        del sizehint
        return self._target[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Stop reading as soon as the part is whole."""
        if self._is_draining:
            return
        self._filled += nbytes
        if self._filled == len(self._target):
            self.transport.pause_reading()
            self._wake()

    def eof_received(self) -> bool:
        """Note the end; the transport closes itself."""
        self._lose("the peer closed the connection")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end, with its reason if there is one."""
        self._lose(reason_of(exc) if exc is not None else "the connection was closed")

    # -- for the handshake -------------------------------------------------------------------

    @property
    def transport(self) -> asyncio.Transport:
        """The transport, which is there from ``connection_made`` on."""
        assert self._transport is not None
        return self._transport

    @property
    def peer_name(self) -> str:
        """Where the other end is, for people."""
        name = self.transport.get_extra_info("peername")
        return f"{name[0]} port {name[1]}" if isinstance(name, tuple) else "an unknown address"

    async def read(self, limits: FrameLimits = HANDSHAKE_LIMITS) -> Frame:
        """Read one frame without a body; reading is paused again when this returns.

        Raises:
            PeerError: not a frame, too large, or the connection ended.
        """
        assert limits.body_bytes_max == 0
        await self._fill()
        prefix = parse_prefix(bytes(self._target), limits)
        header = b""
        if prefix.header_bytes:
            self._aim(prefix.header_bytes)
            await self._fill()
            header = bytes(self._target)
        self._aim(PREFIX_BYTES)
        return Frame(prefix.kind, header, b"")

    def write(self, message: HandshakeMessage) -> None:
        """Send a frame."""
        self.transport.write(encode(message))

    async def finish(self, message: HandshakeMessage) -> None:
        """Send the last frame and close when the peer has; cancel it to close at once.

        Closing with unread bytes would make the kernel reset the connection, and the peer lose the
        frame that says why it is refused.
        """
        try:
            self.write(message)
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self._is_draining = True
            self._target, self._filled = memoryview(bytearray(_DRAIN_BYTES)), 0
            while self._lost is None:
                await self._wait()
        except (OSError, RuntimeError):
            pass  # the peer has gone already
        finally:
            self.close()

    def detach(self) -> asyncio.Transport:
        """Return the transport, reading paused, for another protocol."""
        if self._lost is not None:
            raise HandshakeError(self._lost)
        return self.transport

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    # -- inside ------------------------------------------------------------------------------

    def _aim(self, size: int) -> None:
        self._target, self._filled = memoryview(bytearray(size)), 0

    async def _fill(self) -> None:
        while self._filled < len(self._target):
            if self._lost is not None:
                raise HandshakeError(self._lost)
            await self._wait()

    async def _wait(self) -> None:
        """Read until something has happened."""
        self._waiter = asyncio.get_running_loop().create_future()
        if not self.transport.is_reading():
            with contextlib.suppress(RuntimeError):  # it is closing: connection_lost follows
                self.transport.resume_reading()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _lose(self, reason: str) -> None:
        if self._lost is None:
            self._lost = reason
        self._wake()


async def connect(address: Address) -> HandshakeStream:
    """Open a TCP connection to a numeric address.

    Raises:
        PeerError: it cannot be opened; cancel or time out around it.
    """
    loop = asyncio.get_running_loop()
    try:
        _, stream = await loop.create_connection(HandshakeStream, address.host, address.port)
    except OSError as error:
        raise PeerError(reason_of(error)) from error
    return stream


async def greet(
    address: Address, hello: Hello, timeout_s: float = HANDSHAKE_S
) -> tuple[HandshakeStream, Welcome]:
    """Dial, say Hello and read the answer; reading is paused when this returns.

    Raises:
        RefusedError: the peer refused.
        PeerError: it cannot be reached, does not answer in time, or answers nonsense.
    """
    try:
        async with asyncio.timeout(timeout_s):
            stream = await connect(address)
            try:
                stream.write(hello)
                return stream, _welcome(await stream.read())
            except BaseException:
                stream.close()
                raise
    except TimeoutError:
        raise HandshakeError(f"no answer within {timeout_s:g} s") from None


def _welcome(frame: Frame) -> Welcome:
    answer = decode(frame.kind, frame.header, (Welcome, Refused))
    if isinstance(answer, Refused):
        raise RefusedError(answer.code, answer.reason)
    assert isinstance(answer, Welcome)
    return answer


def reason_of(error: BaseException) -> str:
    """Return why a connection failed, in the system's words and without numbers."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__
