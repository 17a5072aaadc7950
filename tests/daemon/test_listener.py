"""What strangers may do to the listening port, and what a dial may meet there."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from greedw_daemon.network.handshake import HandshakeStream, RefusedError, connect, greet
from greedw_daemon.network.listener import Listener
from greedw_p2p.config import Address, Member
from greedw_p2p.errors import ConfigError, DaemonError, PeerError
from greedw_p2p.ids import ClusterId, Incarnation, NodeId
from greedw_p2p.wire.codec import encode
from greedw_p2p.wire.framing import pack_prefix
from greedw_p2p.wire.messages import (
    PROTOCOL_VERSION,
    Channel,
    Hello,
    RefusalCode,
    Refused,
    Welcome,
)

MEMBER = Member(NodeId("a" * 32), Incarnation(1), "lab-a", Address("127.0.0.1", 1))
HELLO = Hello(PROTOCOL_VERSION, Channel.CONTROL, ClusterId("c" * 32), MEMBER, 0)
HANDSHAKE_S = 0.5
WAIT_S = 10.0


class Door:
    """Lets everyone in, and says goodbye."""

    def __init__(self) -> None:
        self.admitted = 0
        self.refusal: Refused | None = None

    def refuse(self, hello: Hello) -> Refused | None:
        assert hello.cluster == HELLO.cluster
        return self.refusal

    async def admit(self, hello: Hello, stream: HandshakeStream) -> None:
        self.admitted += 1
        await stream.finish(Welcome(hello.member))


Scene = Callable[[Door, Address], Awaitable[None]]


def play(scene: Scene) -> None:
    async def main() -> None:
        door = Door()
        listener = Listener(door, handshake_s=HANDSHAKE_S)
        address = await listener.open("127.0.0.1", 0)
        try:
            async with asyncio.timeout(WAIT_S):
                await scene(door, address)
        finally:
            await listener.close()

    uvloop.run(main())


async def enter(address: Address) -> None:
    stream, welcome = await greet(address, HELLO)
    assert welcome == Welcome(MEMBER)
    stream.close()


async def has_ended(reading: Awaitable[bytes]) -> bool:
    try:
        return await reading == b""
    except ConnectionError:
        return True


def test_hello_that_comes_byte_by_byte_is_taken() -> None:
    async def scene(door: Door, address: Address) -> None:
        stream = await connect(address)
        for byte in encode(HELLO):
            stream.transport.write(bytes((byte,)))
            await asyncio.sleep(0)
        await stream.read()
        assert door.admitted == 1
        stream.close()

    play(scene)


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\x16\x03\x01" * 100,
        b"GET / HTTP/1.1\r\n\r\n",
        encode(HELLO)[:40],
        pack_prefix(1, 2**32 - 1, 0),
        pack_prefix(1, 100, 2**32 - 1),
        pack_prefix(200, 1, 0) + b"\xc0",
        pack_prefix(1, 4, 0) + b"\xdd\xff\xff\xff",
        encode(Welcome(MEMBER)),
    ],
)
def test_stranger_that_says_nothing_or_nonsense_is_dropped_in_time(first: bytes) -> None:
    async def scene(door: Door, address: Address) -> None:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(first)
        await enter(address)
        async with asyncio.timeout(HANDSHAKE_S * 4):
            assert await has_ended(reader.read())
        writer.close()
        assert door.admitted == 1

    play(scene)


def test_flood_of_silent_strangers_does_not_keep_an_honest_one_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("greedw_daemon.network.listener.HANDSHAKES_MAX", 8)

    async def scene(_: Door, address: Address) -> None:
        opened = [await asyncio.open_connection(address.host, address.port) for _ in range(20)]
        await enter(address)
        # The oldest were dropped to make room, before their time was over.
        async with asyncio.timeout(HANDSHAKE_S / 2):
            assert await has_ended(opened[0][0].read())
        for pair in opened:
            pair[1].close()

    play(scene)


@pytest.mark.parametrize("after_hello", [b"", b"more that nobody reads" * 1000])
def test_refused_peer_reads_why_even_if_it_has_sent_more(after_hello: bytes) -> None:
    async def scene(door: Door, address: Address) -> None:
        door.refusal = Refused(RefusalCode.BUSY, "come back later")
        stream = await connect(address)
        stream.transport.write(encode(HELLO) + after_hello)
        frame = await stream.read()
        assert b"come back later" in frame.header
        stream.close()

    play(scene)


def test_peer_of_another_version_is_refused_before_anything_else() -> None:
    async def scene(door: Door, address: Address) -> None:
        other = Hello(9, Channel.CONTROL, ClusterId("e" * 32), MEMBER, 0)
        with pytest.raises(RefusedError, match="version 1 of the protocol, you speak 9") as caught:
            await greet(address, other)
        assert caught.value.code is RefusalCode.VERSION
        assert door.admitted == 0

    play(scene)


def test_dial_to_a_peer_that_never_answers_fails_in_time() -> None:
    async def scene(_: Door, __: Address) -> None:
        # The kernel completes the connection, nobody ever reads it.
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = Address("127.0.0.1", silent.getsockname()[1])
            with pytest.raises(PeerError, match=r"no answer within 0\.2 s"):
                await greet(address, HELLO, timeout_s=0.2)

    play(scene)


def test_dial_to_something_else_than_greedw_names_it() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"220 mail.example.org ESMTP\r\n")
        writer.close()

    async def scene(_: Door, __: Address) -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises(PeerError, match="not a frame of greedw"):
            await greet(address, HELLO)
        server.close()

    play(scene)


def test_listening_where_it_is_not_possible_says_why() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as busy:
            port = busy.getsockname()[1]
            with pytest.raises(DaemonError, match=f"127.0.0.1:{port}: the port is in use") as used:
                await Listener(Door()).open("127.0.0.1", port)
            assert f"sport = :{port}" in used.value.hint
        with pytest.raises(ConfigError, match="no interface of this machine has that address"):
            await Listener(Door()).open("192.0.2.1", 0)

    asyncio.run(main())
