"""The mesh: one control connection per peer, and the dialling of bulk connections.

Rules:

1. A connection is between two exact lives (node and incarnation), fixed by Hello and Welcome. A
   newer life of a node replaces the connection of an older one; an older one is refused.
2. Two nodes may dial each other at the same moment. Both then keep the connection that the smaller
   node id dialled. The other one is only half closed: what was already sent on it is still
   delivered, so that choosing loses no message.
3. Nothing is queued without limit: a peer that does not read is disconnected, and named.
4. The listener learns of the end of a connection once, with the reason, and of nothing after it.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from greedw_daemon.log_setup import get_logger
from greedw_daemon.network.handshake import HandshakeStream, greet, reason_of
from greedw_daemon.tasks import TaskSet
from greedw_p2p.config import Address, Member
from greedw_p2p.errors import HandshakeError, PeerError
from greedw_p2p.ids import ClusterId, Incarnation, LineageId, MemberId, NodeId
from greedw_p2p.limits import CONTROL_HEADER_BYTES_MAX, MEMBERS_MAX
from greedw_p2p.wire.codec import CONTROL_LIMITS, decode_control, encode_control
from greedw_p2p.wire.framing import FrameDecoder
from greedw_p2p.wire.messages import (
    PROTOCOL_VERSION,
    Bytes,
    Channel,
    ContentMessage,
    ControlMessage,
    GetBytes,
    Hello,
    ProbeChunk,
    RefusalCode,
    Refused,
    Welcome,
)

QUEUE_BYTES_MAX: Final = 8 * CONTROL_HEADER_BYTES_MAX
"""Bytes that may wait for one peer: eight of the largest messages. More means it does not read."""

DIALS_MAX: Final = 32
"""Dials under way at a time."""

BULK_WAIT_S: Final = 1.0
"""How long a bulk Hello may be ahead of the control connection of the same peer."""

RETIRE_S: Final = 3.0
"""How long the losing one of two connections stays to deliver what was sent on it."""

AnyMessage = ControlMessage | ContentMessage

_PADDING: Final = bytes(CONTROL_LIMITS.body_bytes_max)

log = get_logger()


class MeshListener(Protocol):
    """Whoever is told what happens on the mesh."""

    def peer_connected(self, member: Member) -> None:
        """A control connection is open."""
        ...

    def peer_disconnected(self, peer: MemberId, reason: str) -> None:
        """A control connection has ended."""
        ...

    def dial_failed(self, node: NodeId, reason: str) -> None:
        """A connection could not be opened."""
        ...

    def message_received(
        self, sender: MemberId, lineage: LineageId, message: ControlMessage
    ) -> None:
        """A message for the node came in."""
        ...

    def content_received(self, sender: MemberId, message: ContentMessage, body: bytes) -> None:
        """A request for content came in, or a piece of it."""
        ...

    def bulk_accepted(self, member: MemberId, transport: asyncio.Transport) -> None:
        """A peer opened a bulk connection; reading is paused."""
        ...


class _Connection(asyncio.Protocol):
    """One control connection after its handshake."""

    def __init__(
        self,
        member: Member,
        transport: asyncio.Transport,
        *,
        dialled_by: NodeId,
        received: "Callable[[_Connection, LineageId, AnyMessage, bytes], None]",
        ended: "Callable[[_Connection, str], None]",
    ) -> None:
        self.member = member
        self.dialled_by = dialled_by
        self.is_open = True
        self._transport = transport
        self._decoder = FrameDecoder(CONTROL_LIMITS)
        self._received = received
        self._ended = ended
        self._retirement: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Take the transport over from the handshake."""
        self._transport.set_protocol(self)
        self._transport.resume_reading()

    def send(self, frame: bytes, body: bytes) -> None:
        if not self.is_open or self._transport.is_closing():
            return
        self._transport.write(frame)
        if body:
            self._transport.write(body)
        queued = self._transport.get_write_buffer_size()
        if queued > QUEUE_BYTES_MAX:
            self.abort(f"it does not read: {queued} bytes were waiting for it")

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                if not self.is_open:
                    return
                lineage, message = decode_control(frame)
                self._received(self, lineage, message, frame.body)
        except PeerError as error:
            self.abort(str(error))

    def eof_received(self) -> bool:
        self._end("it closed the connection")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._retirement is not None:
            self._retirement.cancel()
        self._end(reason_of(exc) if exc is not None else "the connection was closed")

    def retire(self) -> None:
        """Send nothing more, deliver what comes until the peer has closed its half too."""
        if self._transport.is_closing():
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        loop = asyncio.get_running_loop()
        self._retirement = loop.call_later(RETIRE_S, self._transport.abort)

    def abort(self, reason: str) -> None:
        """Drop the connection and tell why."""
        self._end(reason)
        self._transport.abort()

    def close(self, reason: str) -> None:
        """Close the connection after what is queued, and tell why."""
        self._end(reason)
        self._transport.close()

    def pause_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _end(self, reason: str) -> None:
        if self.is_open:
            self.is_open = False
            self._ended(self, reason)


class Mesh:
    """The control connections of one life of this node."""

    def __init__(self, me: Member, cluster: ClusterId, listener: MeshListener) -> None:
        self.me = me
        self._cluster = cluster
        self._listener = listener
        self._peers: dict[NodeId, _Connection] = {}
        self._retired: set[_Connection] = set()
        self._lives: dict[NodeId, Incarnation] = {}
        self._dialling: set[NodeId] = set()
        self._dials = asyncio.Semaphore(DIALS_MAX)
        self._changed = asyncio.Condition()
        self._tasks = TaskSet()
        self._is_closed = False

    # -- who is there ------------------------------------------------------------------------

    def member_of(self, node: NodeId) -> Member | None:
        """Return the connected life of a node."""
        connection = self._peers.get(node)
        return None if connection is None else connection.member

    def members(self) -> tuple[Member, ...]:
        """Return the connected peers, by node id."""
        return tuple(self._peers[node].member for node in sorted(self._peers))

    @property
    def is_dialling(self) -> bool:
        """Tell whether a dial is under way."""
        return bool(self._dialling)

    # -- what the node asks for --------------------------------------------------------------

    def dial(self, node: NodeId, address: Address) -> None:
        """Open a control connection, unless one is open or being opened."""
        if node not in self._peers and node not in self._dialling and not self._is_closed:
            self._dialling.add(node)
            self._tasks.start(self._dial(node, address), f"dial {address}")

    def send(
        self,
        to: MemberId,
        lineage: LineageId,
        message: AnyMessage,
        body: bytes = b"",
    ) -> None:
        """Send a message to exactly this life; dropped if it is not connected."""
        connection = self._peers.get(to.node)
        if connection is None or connection.member.id != to:
            return
        if isinstance(message, ProbeChunk):
            body = _PADDING[: message.size]
        connection.send(encode_control(lineage, message, len(body)), body)

    async def dial_bulk(self, node: NodeId, tree: int) -> asyncio.Transport:
        """Open a bulk connection to a connected peer; reading is paused.

        Raises:
            PeerError: it is not connected, cannot be reached, or refuses.
        """
        connection = self._peers.get(node)
        if connection is None:
            raise HandshakeError("there is no control connection to it")
        member = connection.member
        stream, welcome = await greet(member.address, self._hello(Channel.BULK, tree))
        if welcome.member.id != member.id:
            stream.close()
            raise HandshakeError(f"{member.address} answers as another node or another life")
        return stream.detach()

    def pause_reading(self) -> None:
        """Take in nothing more from peers for now."""
        for connection in (*self._peers.values(), *self._retired):
            connection.pause_reading()

    def resume_reading(self) -> None:
        """Go on after ``pause_reading``."""
        for connection in (*self._peers.values(), *self._retired):
            connection.resume_reading()

    async def close(self) -> None:
        """Close all connections after what is queued, without telling the listener."""
        self._is_closed = True
        await self._tasks.close()
        for connection in (*self._peers.values(), *self._retired):
            connection.close("this node ends")
        self._peers.clear()
        self._retired.clear()

    # -- those who dial us -------------------------------------------------------------------

    def refuse(self, hello: Hello) -> Refused | None:
        """Say why a Hello for a control or bulk connection is not taken."""
        if self._is_closed:
            return Refused(RefusalCode.BUSY, "it is on its way out")
        if hello.cluster != self._cluster:
            return Refused(RefusalCode.CLUSTER, "it belongs to another cluster")
        caller = hello.member
        if caller.node == self.me.node:
            return Refused(
                RefusalCode.IDENTITY,
                "it has the same node id: you dialled yourself, or run on a copied state directory",
            )
        newest = self._lives.get(caller.node, Incarnation(0))
        if caller.incarnation < newest:
            return Refused(
                RefusalCode.IDENTITY,
                f"a newer life ({newest}) of this node is known, yours is {caller.incarnation}; "
                "was the state directory restored from a backup?",
            )
        if caller.node not in self._peers and len(self._peers) >= MEMBERS_MAX:
            return Refused(RefusalCode.BUSY, f"it has {MEMBERS_MAX} connections already")
        return None

    async def admit(self, hello: Hello, stream: HandshakeStream) -> None:
        """Complete the handshake of a control or bulk connection."""
        if hello.channel is Channel.BULK:
            await self._admit_bulk(hello.member, stream)
            return
        stream.write(Welcome(self.me))
        self._register(self._connection(hello.member, stream, dialled_by=hello.member.node))

    async def _admit_bulk(self, member: Member, stream: HandshakeStream) -> None:
        def is_connected() -> bool:
            connection = self._peers.get(member.node)
            return connection is not None and connection.member.id == member.id

        try:
            async with asyncio.timeout(BULK_WAIT_S), self._changed:
                await self._changed.wait_for(is_connected)
        except TimeoutError:
            await stream.finish(
                Refused(RefusalCode.IDENTITY, "there is no control connection to this life")
            )
            return
        stream.write(Welcome(self.me))
        self._listener.bulk_accepted(member.id, stream.detach())

    # -- inside ------------------------------------------------------------------------------

    def _hello(self, channel: Channel, tree: int = 0) -> Hello:
        return Hello(PROTOCOL_VERSION, channel, self._cluster, self.me, tree)

    async def _dial(self, node: NodeId, address: Address) -> None:
        try:
            async with self._dials:
                stream, welcome = await greet(address, self._hello(Channel.CONTROL))
            try:
                self._check_answer(node, address, welcome.member)
                connection = self._connection(welcome.member, stream, dialled_by=self.me.node)
            except BaseException:
                stream.close()
                raise
        except PeerError as error:
            self._dialling.discard(node)
            # A peer that dialled us meanwhile is connected, whatever became of this dial.
            if node not in self._peers:
                self._listener.dial_failed(node, f"{address}: {error}")
            return
        finally:
            self._dialling.discard(node)
        self._register(connection)

    def _check_answer(self, node: NodeId, address: Address, member: Member) -> None:
        if member.node != node:
            raise HandshakeError(f"{address} is the address of another node now: {member.name}")
        if member.incarnation < self._lives.get(node, Incarnation(0)):
            raise HandshakeError(f"{address} answers as an older life of {member.name}")

    def _connection(
        self, member: Member, stream: HandshakeStream, *, dialled_by: NodeId
    ) -> _Connection:
        return _Connection(
            member,
            stream.detach(),
            dialled_by=dialled_by,
            received=self._received,
            ended=self._ended,
        )

    def _register(self, new: _Connection) -> None:
        """Take a connection in, beside or instead of one that is there (rules 1 and 2)."""
        node = new.member.node
        old = self._peers.get(node)
        if old is not None and old.member.id == new.member.id and old.dialled_by != new.dialled_by:
            self._choose(old, new)
        else:
            if old is not None:
                restarted = old.member.id != new.member.id
                old.close("it was restarted" if restarted else "it connected anew")
            self._peers[node] = new
            self._remember_life(new.member)
            # Before its first message is read.
            self._listener.peer_connected(new.member)
        new.start()
        self._tasks.start(self._tell_waiters(), "tell waiters")

    def _choose(self, old: _Connection, new: _Connection) -> None:
        kept, retired = sorted((old, new), key=lambda connection: connection.dialled_by)
        self._peers[new.member.node] = kept
        self._retired.add(retired)
        retired.retire()
        log.debug("second connection retired", peer=new.member.name)

    def _remember_life(self, member: Member) -> None:
        self._lives[member.node] = member.incarnation
        if len(self._lives) > 4 * MEMBERS_MAX:
            # Strangers could grow it for ever; what a connected peer was is what matters.
            self._lives = {n: c.member.incarnation for n, c in self._peers.items()}

    async def _tell_waiters(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _received(
        self,
        connection: _Connection,
        lineage: LineageId,
        message: AnyMessage,
        body: bytes,
    ) -> None:
        sender = connection.member.id
        if isinstance(message, GetBytes | Bytes):
            self._listener.content_received(sender, message, body)
        else:
            self._listener.message_received(sender, lineage, message)

    def _ended(self, connection: _Connection, reason: str) -> None:
        self._retired.discard(connection)
        node = connection.member.node
        if self._peers.get(node) is connection:
            del self._peers[node]
            if not self._is_closed:
                self._listener.peer_disconnected(connection.member.id, reason)
