"""The one listening port: reads each newcomer's Hello and hands the connection on.

What a stranger can cost is bounded: a handshake has a time limit, and of the handshakes under way
the oldest is dropped when there are too many. An honest one ends within milliseconds, so the oldest
is the one that was never meant to end.
"""

import asyncio
import contextlib
import errno
import socket
from typing import Final, Protocol

from greedw_daemon.log_setup import get_logger
from greedw_daemon.network.handshake import HANDSHAKE_S, HandshakeStream
from greedw_daemon.tasks import TaskSet
from greedw_p2p.config import Address
from greedw_p2p.errors import ConfigError, DaemonError, PeerError
from greedw_p2p.wire.codec import decode
from greedw_p2p.wire.messages import PROTOCOL_VERSION, Hello, RefusalCode, Refused

HANDSHAKES_MAX: Final = 64
"""Handshakes under way at a time."""

BACKLOG: Final = 128

log = get_logger()


class Door(Protocol):
    """Whoever decides on those who say Hello."""

    def refuse(self, hello: Hello) -> Refused | None:
        """Say why this one may not come in, or None if it may."""
        ...

    async def admit(self, hello: Hello, stream: HandshakeStream) -> None:
        """Carry the handshake on; the stream belongs to the door now. May raise PeerError."""
        ...


class Listener:
    """Accepts connections on one socket."""

    def __init__(self, door: Door, *, handshake_s: float = HANDSHAKE_S) -> None:
        self._door = door
        self._handshake_s = handshake_s
        self._server: asyncio.Server | None = None
        self._tasks = TaskSet()
        self._under_way: dict[HandshakeStream, asyncio.Task[None]] = {}

    async def open(self, host: str, port: int) -> Address:
        """Listen, and return the address with the port that the system chose if it was 0.

        Raises:
            DaemonError: the port is in use.
            ConfigError: this machine has no such address, or the port is not for this user.
        """
        listening = _bind(host, port)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: HandshakeStream(self._opened), sock=listening, backlog=BACKLOG
            )
        except OSError as error:
            listening.close()
            raise _cannot_listen(error, host, port) from error
        return Address(host, int(listening.getsockname()[1]))

    async def close(self) -> None:
        """Stop listening and drop the handshakes under way."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._tasks.close()

    def _opened(self, stream: HandshakeStream) -> None:
        if len(self._under_way) >= HANDSHAKES_MAX:
            oldest = next(iter(self._under_way))
            self._under_way.pop(oldest).cancel()
        self._under_way[stream] = self._tasks.start(self._receive(stream), "handshake")

    async def _receive(self, stream: HandshakeStream) -> None:
        try:
            async with asyncio.timeout(self._handshake_s):
                await self._shake_hands(stream)
        except TimeoutError:
            log.info("handshake timed out", peer=stream.peer_name)
            stream.close()
        except PeerError as error:
            log.info("handshake failed", peer=stream.peer_name, reason=str(error))
            stream.close()
        except BaseException:
            stream.close()
            raise
        finally:
            self._under_way.pop(stream, None)

    async def _shake_hands(self, stream: HandshakeStream) -> None:
        frame = await stream.read()
        hello = decode(frame.kind, frame.header, (Hello,))
        refused = _other_version(hello) or self._door.refuse(hello)
        if refused is None:
            await self._door.admit(hello, stream)
            return
        log.info(
            "peer refused",
            peer=hello.member.name,
            address=stream.peer_name,
            channel=hello.channel.value,
            reason=refused.reason,
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._handshake_s / 2):
                await stream.finish(refused)


def _other_version(hello: Hello) -> Refused | None:
    if hello.version == PROTOCOL_VERSION:
        return None
    return Refused(
        RefusalCode.VERSION,
        f"it speaks version {PROTOCOL_VERSION} of the protocol, you speak {hello.version}; "
        "install the same version of greedw on both machines",
    )


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    except OSError as error:
        raise _cannot_listen(error, host, port) from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # What peers are told is of one family, so only that one is served.
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise _cannot_listen(error, host, port) from error
    return listening


def _cannot_listen(error: OSError, host: str, port: int) -> ConfigError | DaemonError:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return DaemonError(
            f"cannot listen on {where}: the port is in use by another process",
            hint=f"see which one: ss -ltnp 'sport = :{port}'; or choose another port: --listen",
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(
            f"cannot listen on {where}: no interface of this machine has that address",
            hint="see the addresses it has: ip -brief address",
        )
    if error.errno == errno.EACCES:
        return ConfigError(
            f"cannot listen on {where}: this user may not open that port",
            hint="choose a port from 1024 on: --listen",
        )
    return ConfigError(f"cannot listen on {where}: {error.strerror}")
