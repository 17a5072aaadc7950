"""Data planes over real sockets: a cluster of them, and one with a raw connection to it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any, Self

import numpy as np
import uvloop
import xxhash
from numpy.typing import NDArray

from greedw_daemon.data_plane.plane import AttemptOrder, DataPlane, Regions
from greedw_p2p.ids import (
    Ballot,
    ContentDigest,
    EntryIndex,
    Incarnation,
    LineageId,
    MemberId,
    NodeId,
)
from greedw_p2p.links.cell import LinkCell
from greedw_p2p.log.entry import RoundOutcome
from greedw_p2p.node.events import AttemptBroken, AttemptFinished
from greedw_p2p.reduction.layout import BucketLayout
from greedw_p2p.view import RoundReport
from greedw_p2p.wire.codec import BULK_LIMITS, BULK_TYPES, decode, encode
from greedw_p2p.wire.framing import PREFIX_BYTES, parse_prefix
from greedw_p2p.wire.messages import Chunk, Contribution, PartSummary, StreamOpen

Vector = NDArray[np.float32]
LINEAGE = LineageId("ab" * 16)
LAYOUT = BucketLayout((4096, 1600, 16, 12_000))
WAIT_S = 20.0
ID_BYTES = 32


def node_id(number: int) -> NodeId:
    return NodeId(f"{number:032x}")


def member(number: int) -> MemberId:
    return MemberId(node_id(number), Incarnation(1))


class Greeting(asyncio.BufferedProtocol):
    """Reads exactly as many bytes as a greeting has, pauses, and hands the transport over."""

    def __init__(self, nbytes: int, greeted: Callable[[asyncio.Transport, bytes], None]) -> None:
        self._view = memoryview(bytearray(nbytes))
        self._filled = 0
        self._greeted = greeted
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled == len(self._view):
            self._transport.pause_reading()
            self._greeted(self._transport, bytes(self._view))


class Host:
    """A node: a data plane, its listening socket, and its memory."""

    def __init__(self, number: int, cluster: "Cluster") -> None:
        self.number, self.cluster = number, cluster
        self.events: asyncio.Queue[AttemptFinished | AttemptBroken] = asyncio.Queue()
        self.own: Vector = np.zeros(LAYOUT.elements, np.float32)
        self.result: Vector = np.zeros(LAYOUT.elements, np.float32)
        self.dials = 0
        self.accepted: list[asyncio.Transport] = []
        self.dialled: list[asyncio.Transport] = []
        self.plane = DataPlane(
            me=member(number),
            dial=self._dial,
            name_of=lambda node: f"lab-{int(node, 16)}",
            on_finished=self.events.put_nowait,
            on_broken=self.events.put_nowait,
        )

    async def listen(self) -> None:
        self.server = await asyncio.get_running_loop().create_server(
            lambda: Greeting(ID_BYTES, self._accept), "127.0.0.1", 0
        )
        self.port: int = self.server.sockets[0].getsockname()[1]

    def begin(self, order: AttemptOrder) -> None:
        self.order = order
        self.plane.begin(order, Regions(self.own, self.result))

    def compute(self, *, buckets: int | None = None) -> None:
        """Declare the first buckets ready, or all of them and the figures."""
        order = self.order
        every = range(len(order.layout.buckets))
        for bucket in every[:buckets]:
            self.plane.own_bucket_ready(order.index, order.ballot, bucket)
        if buckets is not None:
            return
        self.plane.own_finished(
            order.index,
            order.ballot,
            Contribution(member(self.number), self.number, 1),
            RoundOutcome(self.number + 1, 0.1 * self.number, self.number),
            RoundReport(node_id(self.number), 1, 2, 3, 4, 5, 6),
            (LinkCell(node_id(self.number), node_id(99), Incarnation(1), 1, 2, 3),),
        )

    async def ended(self) -> AttemptFinished | AttemptBroken:
        return await self.events.get()

    async def finished(self) -> AttemptFinished:
        event = await self.ended()
        assert isinstance(event, AttemptFinished), event
        return event

    async def broken(self) -> AttemptBroken:
        event = await self.ended()
        assert isinstance(event, AttemptBroken), event
        return event

    async def close(self) -> None:
        self.server.close()
        await self.plane.close()
        await self.server.wait_closed()

    async def _dial(self, node: NodeId, tree: int) -> asyncio.Transport:
        self.dials += 1
        loop = asyncio.get_running_loop()
        taken: asyncio.Future[asyncio.Transport] = loop.create_future()
        transport, _ = await loop.create_connection(
            lambda: Greeting(1, lambda transport, _: taken.set_result(transport)),
            "127.0.0.1",
            self.cluster.hosts[int(node, 16)].port,
        )
        transport.write(node_id(self.number).encode())
        found = await taken
        self.dialled.append(found)
        return found

    def _accept(self, transport: asyncio.Transport, greeting: bytes) -> None:
        transport.write(b"+")
        self.accepted.append(transport)
        who = MemberId(NodeId(greeting.decode()), Incarnation(1))
        self.plane.adopt(who, transport)


class Cluster:
    """Hosts 0..n-1 and their orders; host 0 is the root unless ``parents`` says otherwise."""

    def __init__(self, count: int) -> None:
        self.hosts = [Host(number, self) for number in range(count)]
        rng = np.random.default_rng(count)
        for host in self.hosts:
            host.own[:] = rng.standard_normal(LAYOUT.elements) * np.exp2(
                rng.integers(-20, 20, LAYOUT.elements)
            )

    async def __aenter__(self) -> Self:
        for host in self.hosts:
            await host.listen()
        return self

    async def __aexit__(self, *failure: object) -> None:
        for host in self.hosts:
            await host.close()

    def orders(
        self,
        parents: dict[int, int],
        *,
        index: int = 1,
        ballot: int = 0,
        layout: BucketLayout = LAYOUT,
        **changes: Any,
    ) -> dict[int, AttemptOrder]:
        """Return the order of every node in ``parents`` (node to parent) and of the root."""
        numbers = sorted(set(parents) | set(parents.values()) or {0})
        common = AttemptOrder(
            lineage=LINEAGE,
            index=EntryIndex(index),
            ballot=Ballot(ballot, node_id(0)),
            tree=0,
            view_digest=b"v" * 16,
            plan_digest=b"p" * 16,
            me=member(numbers[0]),
            parent=None,
            children=(),
            layout=layout,
            chunk_bytes=4096,
            window_chunks=4,
            send_buffer_bytes=16_384,
            divisor=7,
            total_units=len(numbers),
            participants=tuple(member(number) for number in numbers),
        )
        found: dict[int, AttemptOrder] = {}
        for number in numbers:
            parent = parents.get(number)
            children = sorted(node_id(child) for child in parents if parents[child] == number)
            order = replace(
                common,
                me=member(number),
                parent=None if parent is None else node_id(parent),
                children=tuple(children),
            )
            found[number] = replace(order, **changes)
        return found

    def begin(self, orders: dict[int, AttemptOrder]) -> None:
        for number, order in orders.items():
            self.hosts[number].begin(order)

    def compute(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.hosts[number].compute()

    def expected(self, orders: dict[int, AttemptOrder]) -> Vector:
        """Return the sum of this very tree by numpy, divided once."""

        def subtree(number: int) -> Vector:
            total = self.hosts[number].own.copy()
            for child in orders[number].children:
                total += subtree(int(child, 16))
            return total

        root = next(number for number, order in orders.items() if order.parent is None)
        return subtree(root) / np.float32(orders[root].divisor)

    async def check_result(self, orders: dict[int, AttemptOrder]) -> None:
        """Wait for the end on every node, and compare bytes and digests."""
        expected = self.expected(orders).tobytes()
        digest = xxhash.xxh3_128(expected).digest()
        for number, order in orders.items():
            event = await self.hosts[number].finished()
            assert (event.index, event.ballot) == (order.index, order.ballot)
            assert event.digest == digest
            assert self.hosts[number].result.tobytes() == expected
            assert self.hosts[number].plane.phase() == "idle"


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something holds; ``run`` bounds the wait."""
    while True:
        if condition():
            return
        await asyncio.sleep(0)


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test in its own loop, with a limit on all its waits together."""
    uvloop.run(asyncio.wait_for(test, WAIT_S))


def star(count: int) -> dict[int, int]:
    return dict.fromkeys(range(1, count), 0)


def chain(count: int) -> dict[int, int]:
    return {number: number - 1 for number in range(1, count)}


def random_tree(count: int) -> dict[int, int]:
    rng = np.random.default_rng(count)
    return {number: int(rng.integers(number)) for number in range(1, count)}


async def stalled(host: Host) -> None:
    """Wait until a node has done all it can before the others go on."""
    phase, rounds = host.plane.phase(), 0
    while rounds < 20:
        await asyncio.sleep(0)
        rounds = rounds + 1 if host.plane.phase() == phase else 0
        phase = host.plane.phase()


# -- one data plane, and a peer that is forged byte by byte ------------------------------------

ME = MemberId(NodeId("0" * 32), Incarnation(1))
PEER = MemberId(NodeId("f" * 32), Incarnation(1))
FIRST = Ballot(0, ME.node)
RAW_LAYOUT = BucketLayout((1024, 512))
CHUNK_BYTES = 1024
CHUNKS = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
WRONG = ContentDigest(b"x" * 16)
KEY = (LINEAGE, EntryIndex(5), FIRST, 0)

OPEN = encode(StreamOpen(*KEY, b"v" * 16, b"p" * 16))


def chunk(
    place: int,
    *,
    nbytes: int = CHUNK_BYTES,
    key: tuple[LineageId, EntryIndex, Ballot, int] = KEY,
    value: float = 1.0,
) -> bytes:
    """A chunk's frame, whole."""
    bucket, number = CHUNKS[place]
    body = np.full(nbytes // 4 + 1, value, np.float32).tobytes()[:nbytes]
    return encode(Chunk(*key, bucket, number), body) + body


def part_summary(member: MemberId = PEER, start: int = 1, units: int = 1) -> bytes:
    outcome = RoundOutcome(1, 0.5, 1)
    return encode(PartSummary(*KEY, (Contribution(member, start, units),), outcome, (), ()))


def raw_order(*, is_root: bool, **changes: Any) -> AttemptOrder:
    base = AttemptOrder(
        lineage=LINEAGE,
        index=EntryIndex(5),
        ballot=FIRST,
        tree=0,
        view_digest=b"v" * 16,
        plan_digest=b"p" * 16,
        me=ME,
        parent=None if is_root else PEER.node,
        children=(PEER.node,) if is_root else (),
        layout=RAW_LAYOUT,
        chunk_bytes=CHUNK_BYTES,
        window_chunks=64,
        send_buffer_bytes=65_536,
        divisor=2,
        total_units=2,
        participants=(ME, PEER),
    )
    return replace(base, **changes)


class Raw:
    """One end of a connection whose other end the data plane has."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[AttemptFinished | AttemptBroken] = asyncio.Queue()
        self.plane = DataPlane(
            me=ME,
            dial=self._dial,
            name_of=lambda node: "me" if node == ME.node else "evil",
            on_finished=self.events.put_nowait,
            on_broken=self.events.put_nowait,
        )
        self.result = np.zeros(RAW_LAYOUT.elements, np.float32)
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> None:
        """Open a connection and let the data plane adopt it."""
        loop = asyncio.get_running_loop()
        accepted: asyncio.Future[asyncio.Transport] = loop.create_future()

        class Accepting(asyncio.Protocol):
            def connection_made(self, transport: Any) -> None:
                transport.pause_reading()
                accepted.set_result(transport)

        server = await loop.create_server(Accepting, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        self.writers.append(self.writer)
        self.adopted = await accepted
        server.close()
        await server.wait_closed()
        self.plane.adopt(PEER, self.adopted)

    def begin(self, order: AttemptOrder) -> None:
        own = np.full(RAW_LAYOUT.elements, 3.0, np.float32)
        self.plane.begin(order, Regions(own, self.result))
        for bucket in range(len(order.layout.buckets)):
            self.plane.own_bucket_ready(order.index, order.ballot, bucket)
        self.plane.own_finished(
            order.index,
            order.ballot,
            Contribution(ME, 0, 1),
            RoundOutcome(1, 0.5, 1),
            RoundReport(ME.node, 1, 2, 3, 4, 5, 6),
            (),
        )

    async def read_frame(self) -> tuple[Any, bytes]:
        prefix = parse_prefix(await self.reader.readexactly(PREFIX_BYTES), BULK_LIMITS)
        header = await self.reader.readexactly(prefix.header_bytes)
        body = await self.reader.readexactly(prefix.body_bytes)
        return decode(prefix.kind, header, BULK_TYPES), body

    async def end_of_file(self) -> None:
        """Wait until the data plane has dropped the connection."""
        try:
            while await self.reader.read(65_536):
                pass
        except ConnectionError:
            pass

    async def broken(self) -> AttemptBroken:
        event = await self.events.get()
        assert isinstance(event, AttemptBroken), event
        return event

    async def close(self) -> None:
        await self.plane.close()
        for writer in self.writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _dial(self, node: NodeId, tree: int) -> asyncio.Transport:
        await self.connect()
        raise ConnectionRefusedError("the data plane has just adopted one")


def run_raw(test: Callable[[Raw], Awaitable[None]]) -> None:
    async def scenario() -> None:
        raw = Raw()
        try:
            await test(raw)
        finally:
            await raw.close()

    uvloop.run(asyncio.wait_for(scenario(), WAIT_S))


GOOD_WAY_UP = OPEN + b"".join(chunk(place) for place in range(6)) + part_summary()
OLDER = (LINEAGE, EntryIndex(4), FIRST, 0)
