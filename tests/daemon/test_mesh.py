"""Meshes over real sockets on loopback, each with its listener, in one event loop."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Self

import pytest
import uvloop

from greedw_daemon.network import mesh as mesh_module
from greedw_daemon.network.handshake import HandshakeStream, RefusedError, connect, greet
from greedw_daemon.network.listener import Listener
from greedw_daemon.network.mesh import Mesh
from greedw_p2p.config import Member
from greedw_p2p.errors import HandshakeError
from greedw_p2p.ids import ClusterId, EntryIndex, Incarnation, LineageId, MemberId, NodeId
from greedw_p2p.wire.codec import encode, encode_control
from greedw_p2p.wire.messages import (
    PROTOCOL_VERSION,
    Bytes,
    CatchUp,
    Channel,
    ContentMessage,
    ControlMessage,
    GetBytes,
    Hello,
    ProbeChunk,
    RefusalCode,
    Refused,
)

CLUSTER = ClusterId("c" * 32)
LINEAGE = LineageId("d" * 32)
WAIT_S = 10.0

Event = tuple[str, Any]


class Host:
    """A node's mesh and listener, and all that the mesh told."""

    def __init__(self, number: int, *, life: int = 1, cluster: ClusterId = CLUSTER) -> None:
        self.number, self.life, self.cluster = number, life, cluster
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.bulk: asyncio.Queue[tuple[MemberId, asyncio.Transport]] = asyncio.Queue()
        self.listener = Listener(self)
        self.mesh: Mesh

    async def __aenter__(self) -> Self:
        address = await self.listener.open("127.0.0.1", 0)
        self.member = Member(
            NodeId(f"{self.number:032x}"), Incarnation(self.life), f"lab-{self.number}", address
        )
        self.mesh = Mesh(self.member, self.cluster, self)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.mesh.close()
        await self.listener.close()

    @property
    def id(self) -> MemberId:
        return self.member.id

    def dial(self, other: "Host") -> None:
        self.mesh.dial(other.member.node, other.member.address)

    def say(self, other: "Host", number: int) -> None:
        self.mesh.send(other.id, LINEAGE, message(number))

    async def next(self) -> Event:
        async with asyncio.timeout(WAIT_S):
            return await self.events.get()

    async def expect(self, *events: Event) -> None:
        assert [await self.next() for _ in events] == list(events)

    # Door

    def refuse(self, hello: Hello) -> Refused | None:
        return self.mesh.refuse(hello)

    async def admit(self, hello: Hello, stream: HandshakeStream) -> None:
        await self.mesh.admit(hello, stream)

    # MeshListener

    def peer_connected(self, member: Member) -> None:
        self.events.put_nowait(("connected", member.id))

    def peer_disconnected(self, peer: MemberId, reason: str) -> None:
        self.events.put_nowait(("disconnected", (peer, reason)))

    def dial_failed(self, node: NodeId, reason: str) -> None:
        self.events.put_nowait(("dial failed", (node, reason)))

    def message_received(
        self, sender: MemberId, lineage: LineageId, message: ControlMessage
    ) -> None:
        assert lineage == LINEAGE
        self.events.put_nowait(("message", (sender, message)))

    def content_received(self, sender: MemberId, message: ContentMessage, body: bytes) -> None:
        self.events.put_nowait(("content", (sender, message, body)))

    def bulk_accepted(self, member: MemberId, transport: asyncio.Transport) -> None:
        self.bulk.put_nowait((member, transport))


def message(number: int) -> ControlMessage:
    return CatchUp(EntryIndex(number), fresh=False)


def hello_of(host: Host, channel: Channel = Channel.CONTROL, **changes: Any) -> Hello:
    values: dict[str, Any] = {
        "version": PROTOCOL_VERSION,
        "channel": channel,
        "cluster": CLUSTER,
        "member": host.member,
        "tree": 0,
    }
    return Hello(**(values | changes))


async def connected(a: Host, b: Host) -> None:
    a.dial(b)
    await a.expect(("connected", b.id))
    await b.expect(("connected", a.id))


Scene = Callable[[], Coroutine[Any, Any, None]]
Play = Callable[[Scene], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest) -> Play:
    """Run a scene in one loop or the other: they differ where transports are handed over."""
    run: Callable[..., object] = asyncio.run if request.param == "asyncio" else uvloop.run

    def bounded(scene: Scene) -> None:
        async def main() -> None:
            async with asyncio.timeout(30):
                await scene()

        run(main())

    return bounded


def test_messages_go_both_ways_in_order(play: Play) -> None:
    async def scene() -> None:
        async with Host(1) as a, Host(2) as b:
            await connected(a, b)
            for number in range(100):
                a.say(b, number)
                b.say(a, number)
            await b.expect(*(("message", (a.id, message(n))) for n in range(100)))
            await a.expect(*(("message", (b.id, message(n))) for n in range(100)))
            assert a.mesh.members() == (b.member,)

    play(scene)


def test_probe_and_content_carry_their_bodies(play: Play) -> None:
    async def scene() -> None:
        async with Host(1) as a, Host(2) as b:
            await connected(a, b)
            probe = ProbeChunk(7, 0, 2, 65_536)
            a.mesh.send(b.id, LINEAGE, probe)
            await b.expect(("message", (a.id, probe)))
            request, piece = GetBytes(b"d" * 16, 0, 5), Bytes(b"d" * 16, 0, 5)
            b.mesh.send(a.id, LINEAGE, request)
            await a.expect(("content", (b.id, request, b"")))
            a.mesh.send(b.id, LINEAGE, piece, b"bytes")
            await b.expect(("content", (a.id, piece, b"bytes")))

    play(scene)


def test_nodes_that_dial_each_other_at_once_keep_one_connection_and_lose_nothing(
    play: Play,
) -> None:
    async def scene() -> None:
        for _ in range(20):
            async with Host(1) as a, Host(2) as b:
                a.dial(b)
                b.dial(a)
                await a.expect(("connected", b.id))
                for number in range(5):
                    a.say(b, number)
                await b.expect(("connected", a.id))
                for number in range(5):
                    b.say(a, number)
                for host, peer in ((b, a), (a, b)):
                    received = {repr(await host.next()) for _ in range(5)}
                    assert received == {repr(("message", (peer.id, message(n)))) for n in range(5)}
                # Once both dials are over, one connection carries everything, in order.
                await until(lambda: not (a.mesh.is_dialling or b.mesh.is_dialling))
                for number in range(10, 20):
                    a.say(b, number)
                await b.expect(*(("message", (a.id, message(n))) for n in range(10, 20)))
                assert a.events.empty()
                assert b.events.empty()

    play(scene)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - it is no event of ours
            await asyncio.sleep(0.005)


def test_newer_life_replaces_the_older_which_is_refused_from_then_on(play: Play) -> None:
    async def scene() -> None:
        async with Host(1) as a, Host(2, life=3) as old, Host(2, life=4) as new:
            await connected(old, a)
            new.dial(a)
            await a.expect(("disconnected", (old.id, "it was restarted")), ("connected", new.id))
            kind, (peer, _) = await old.next()
            assert (kind, peer) == ("disconnected", a.id)
            old.dial(a)
            kind, (_, reason) = await old.next()
            assert kind == "dial failed"
            assert "a newer life (4) of this node is known" in reason
            # Nor is it dialled at the address where it still listens.
            await new.mesh.close()
            assert (await a.next())[0] == "disconnected"
            a.dial(old)
            kind, (node, reason) = await a.next()
            assert (kind, node) == ("dial failed", old.member.node)
            assert "older life" in reason

    play(scene)


def test_node_that_connects_anew_is_told_as_such(play: Play) -> None:
    async def scene() -> None:
        async with Host(1) as a, Host(2) as b:
            await connected(b, a)
            stream, _ = await greet(a.member.address, hello_of(b))
            await a.expect(("disconnected", (b.id, "it connected anew")), ("connected", b.id))
            stream.close()
            kind, (peer, _) = await a.next()
            assert (kind, peer) == ("disconnected", b.id)

    play(scene)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"version": 9}, RefusalCode.VERSION, "version 1 of the protocol, you speak 9"),
        ({"cluster": ClusterId("e" * 32)}, RefusalCode.CLUSTER, "another cluster"),
        ({"channel": Channel.BULK}, RefusalCode.IDENTITY, "no control connection to this life"),
    ],
)
def test_stranger_is_refused_with_the_reason(
    play: Play, changes: dict[str, Any], code: RefusalCode, words: str
) -> None:
    async def scene() -> None:
        async with Host(1) as a, Host(2) as b:
            with pytest.raises(RefusedError, match=words) as caught:
                await greet(a.member.address, hello_of(b, **changes))
            assert caught.value.code is code
            assert a.events.empty()

    play(scene)


def test_node_that_dials_itself_is_told_so(play: Play) -> None:
    async def scene() -> None:
        async with Host(1) as a:
            a.dial(a)
            kind, (_, reason) = await a.next()
            assert kind == "dial failed"
            assert "same node id" in reason

    play(scene)


def test_address_that_belongs_to_another_node_now_is_named(play: Play) -> None:
    async def scene() -> None:
        async with Host(1) as a, Host(2) as b, Host(3) as c:
            a.mesh.dial(c.member.node, b.member.address)
            kind, (node, reason) = await a.next()
            assert (kind, node) == ("dial failed", c.member.node)
            assert f"{b.member.address} is the address of another node now: lab-2" in reason
            # The other end saw a handshake, and then the end of it.
            await b.expect(("connected", a.id))
            assert (await b.next())[0] == "disconnected"

    play(scene)


def test_dial_to_a_port_where_nobody_listens_fails_with_the_reason(play: Play) -> None:
    async def scene() -> None:
        async with Host(1) as a, Host(2) as b:
            await b.listener.close()
            a.dial(b)
            await a.expect(
                ("dial failed", (b.member.node, f"{b.member.address}: connection refused"))
            )

    play(scene)


def test_nonsense_after_the_handshake_ends_the_connection_and_is_named(play: Play) -> None:
    async def scene() -> None:
        async with Host(1) as a, Host(2) as b:
            stream, _ = await greet(a.member.address, hello_of(b))
            await a.expect(("connected", b.id))
            stream.detach().write(b"GET / HTTP/1.1\r\n\r\n")
            kind, (peer, reason) = await a.next()
            assert (kind, peer) == ("disconnected", b.id)
            assert "not a frame of greedw" in reason
            stream.close()

    play(scene)


def test_message_of_another_channel_ends_the_connection_and_is_named(play: Play) -> None:
    async def scene() -> None:
        async with Host(1) as a, Host(2) as b:
            stream, _ = await greet(a.member.address, hello_of(b))
            await a.expect(("connected", b.id))
            stream.write(hello_of(b))
            _, (_, reason) = await a.next()
            assert "a Hello is not taken here" in reason
            stream.close()

    play(scene)


def test_bytes_that_follow_a_handshake_at_once_are_not_lost(play: Play) -> None:
    async def scene() -> None:
        async with Host(1) as a, Host(2) as b:
            stream = await connect(a.member.address)
            frames = [encode(hello_of(b))]
            frames += [encode_control(LINEAGE, message(number)) for number in range(3)]
            stream.transport.write(b"".join(frames))
            await a.expect(
                ("connected", b.id), *(("message", (b.id, message(n))) for n in range(3))
            )
            stream.close()

    play(scene)


def test_peer_that_does_not_read_is_disconnected_and_named(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh_module, "QUEUE_BYTES_MAX", 1 << 20)

    async def scene() -> None:
        async with Host(1) as a, Host(2) as b:
            stream, _ = await greet(a.member.address, hello_of(b))
            await a.expect(("connected", b.id))
            piece = Bytes(b"d" * 16, 0, 65_536)
            for _ in range(400):
                a.mesh.send(b.id, LINEAGE, piece, bytes(65_536))
            kind, (peer, reason) = await a.next()
            assert (kind, peer) == ("disconnected", b.id)
            assert "does not read" in reason
            stream.close()

    play(scene)


def test_message_to_an_older_life_is_not_delivered_to_the_newer(play: Play) -> None:
    async def scene() -> None:
        async with Host(1) as a, Host(2) as b:
            await connected(a, b)
            earlier = MemberId(b.id.node, Incarnation(b.id.incarnation + 1))
            a.mesh.send(earlier, LINEAGE, message(1))
            a.say(b, 2)
            await b.expect(("message", (a.id, message(2))))

    play(scene)


def test_closed_mesh_tells_its_peers_by_closing_and_itself_nothing(play: Play) -> None:
    async def scene() -> None:
        async with Host(1) as a, Host(2) as b:
            await connected(a, b)
            a.say(b, 1)
            await a.mesh.close()
            await b.expect(
                ("message", (a.id, message(1))),
                ("disconnected", (a.id, "it closed the connection")),
            )
            assert a.events.empty()
            with pytest.raises(RefusedError, match="on its way out"):
                await greet(a.member.address, hello_of(b))

    play(scene)


def test_bulk_connection_is_handed_over_paused_and_whole(play: Play) -> None:
    class Reader(asyncio.Protocol):
        def __init__(self) -> None:
            self.data = b""
            self.whole = asyncio.Event()

        def data_received(self, data: bytes) -> None:
            self.data += data
            if len(self.data) == 200_000:
                self.whole.set()

    async def scene() -> None:
        async with Host(1) as a, Host(2) as b:
            await connected(a, b)
            for dialler, acceptor in ((a, b), (b, a)):
                dialled = await dialler.mesh.dial_bulk(acceptor.member.node, 0)
                dialled.write(b"x" * 200_000)
                member, accepted = await acceptor.bulk.get()
                assert member == dialler.id
                assert not dialled.is_reading()
                assert not accepted.is_reading()
                reader = Reader()
                accepted.set_protocol(reader)
                accepted.resume_reading()
                async with asyncio.timeout(WAIT_S):
                    await reader.whole.wait()
                assert reader.data == b"x" * 200_000
                dialled.close()
                accepted.close()

    play(scene)


def test_bulk_dial_without_a_control_connection_fails(play: Play) -> None:
    async def scene() -> None:
        async with Host(1) as a, Host(2) as b:
            with pytest.raises(HandshakeError, match="no control connection"):
                await a.mesh.dial_bulk(b.member.node, 0)

    play(scene)


def test_bulk_hello_may_be_ahead_of_its_control_connection(play: Play) -> None:
    async def scene() -> None:
        async with Host(1) as a, Host(2) as b:
            early = asyncio.ensure_future(greet(a.member.address, hello_of(b, Channel.BULK)))
            await asyncio.sleep(0.05)
            await connected(b, a)
            stream, _ = await early
            member, accepted = await a.bulk.get()
            assert member == b.id
            stream.close()
            accepted.close()

    play(scene)
