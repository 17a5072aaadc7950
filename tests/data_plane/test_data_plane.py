"""Several data planes in one event loop, over real sockets on loopback."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pytest
import uvloop
import xxhash
from numpy.typing import NDArray

from greedw_daemon.data_plane import AttemptOrder, DataPlane, Regions
from greedw_p2p.ids import Ballot, EntryIndex, Incarnation, LineageId, MemberId, NodeId
from greedw_p2p.links.cell import LinkCell
from greedw_p2p.log.entry import RoundOutcome
from greedw_p2p.node.events import AttemptBroken, AttemptFinished
from greedw_p2p.reduction.layout import BucketLayout
from greedw_p2p.view import RoundReport
from greedw_p2p.wire.messages import Contribution

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
            RoundReport(node_id(self.number), 1, 2, 3, 4, 5),
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


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("tree", [star, chain, random_tree])
def test_result_is_the_numpy_sum_of_the_tree_on_every_node(
    tree: Callable[[int], dict[int, int]], count: int
) -> None:
    async def scenario() -> None:
        async with Cluster(count) as cluster:
            before = [host.own.copy() for host in cluster.hosts]
            for index in (1, 2, 3):
                orders = cluster.orders(tree(count), index=index)
                cluster.begin(orders)
                cluster.compute(orders)
                await cluster.check_result(orders)
            assert sum(host.dials for host in cluster.hosts) == count - 1
            for host, own in zip(cluster.hosts, before, strict=True):
                assert host.own.tobytes() == own.tobytes(), "own sums are needed again"

    run(scenario())


def test_root_learns_who_took_part_with_figures_reports_and_links() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            orders = cluster.orders(chain(4))
            cluster.begin(orders)
            cluster.compute([3, 1, 2, 0])
            event = await cluster.hosts[0].finished()
            loss = 0.0 + (0.1 + (0.2 + 0.1 * 3))
            assert event.outcome == RoundOutcome(10, loss, 6)
            assert event.contributions == tuple(Contribution(member(n), n, 1) for n in range(4))
            assert [report.node for report in event.reports] == [node_id(n) for n in range(4)]
            assert [cell.writer for cell in event.links] == [node_id(n) for n in range(4)]
            for host in cluster.hosts[1:]:
                other = await host.finished()
                assert other.outcome == event.outcome
                assert other.contributions == ()

    run(scenario())


def test_an_empty_layout_carries_only_figures() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            untouched = cluster.hosts[2].result.copy()
            orders = cluster.orders(random_tree(4), layout=BucketLayout(()))
            cluster.begin(orders)
            cluster.compute(orders)
            for host in cluster.hosts:
                event = await host.finished()
                assert event.digest == b""
                assert event.outcome.samples == 10
            assert (cluster.hosts[2].result == untouched).all()

    run(scenario())


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_node_that_begins_late_finds_what_was_sent_before(late: int) -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            cluster.begin(first := cluster.orders(chain(4)))
            cluster.compute(first)
            await cluster.check_result(first)
            orders = cluster.orders(chain(4), index=2)
            early = [number for number in orders if number != late]
            for number in early:
                cluster.hosts[number].begin(orders[number])
            cluster.compute(early)
            # What the late one still runs is nothing: streams of entry 2 wait unread meanwhile.
            assert cluster.hosts[late].plane.phase() == "idle"
            await asyncio.wait([asyncio.create_task(stalled(cluster.hosts[late - 1 or 2]))])
            cluster.hosts[late].begin(orders[late])
            cluster.compute([late])
            await cluster.check_result(orders)

    run(scenario())


async def stalled(host: Host) -> None:
    """Wait until a node has done all it can before the others go on."""
    phase, rounds = host.plane.phase(), 0
    while rounds < 20:
        await asyncio.sleep(0)
        rounds = rounds + 1 if host.plane.phase() == phase else 0
        phase = host.plane.phase()


def test_a_bucket_travels_before_the_next_one_is_ready() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            orders = cluster.orders(star(2))
            cluster.begin(orders)
            for host in cluster.hosts:
                host.compute(buckets=1)
            size = LAYOUT.buckets[0]
            expected = cluster.expected(orders)[:size].tobytes()
            await until(lambda: cluster.hosts[1].result[:size].tobytes() == expected)
            assert cluster.hosts[1].plane.phase() == "compute: waiting for chunk 4 of this node"
            cluster.compute(orders)
            await cluster.check_result(orders)

    run(scenario())


def test_the_direction_of_an_edge_may_turn_on_the_same_connection() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            for index, parents in enumerate([{1: 0, 2: 1}, {0: 1, 1: 2}, {0: 1, 2: 1}], start=1):
                orders = cluster.orders(parents, index=index)
                cluster.begin(orders)
                cluster.compute(orders)
                await cluster.check_result(orders)
            assert [host.dials for host in cluster.hosts] == [0, 1, 1]

    run(scenario())


def test_a_lower_ballot_is_replaced_in_the_middle_and_its_leftovers_are_skipped() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            for index in range(1, 6):
                old = cluster.orders(chain(4), index=index)
                cluster.begin(old)
                # Node 0 is silent, so the windows of the others fill up and wait.
                cluster.compute([1, 2, 3])
                await stalled(cluster.hosts[3])
                new = cluster.orders(star(4), index=index, ballot=1)
                cluster.begin(new)
                cluster.compute(new)
                await cluster.check_result(new)
            assert all(host.events.empty() for host in cluster.hosts)

    run(scenario())


def test_the_next_attempt_works_on_the_same_connections_after_a_cancel() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            old = cluster.orders(random_tree(4))
            cluster.begin(old)
            cluster.compute([1, 2, 3])
            for host in cluster.hosts:
                await stalled(host)
                host.plane.cancel(EntryIndex(1), Ballot(0, node_id(0)))
                assert host.plane.phase() == "idle"
            new = cluster.orders(random_tree(4), index=2)
            cluster.begin(new)
            cluster.compute(new)
            await cluster.check_result(new)
            assert sum(host.dials for host in cluster.hosts) == 3

    run(scenario())


def test_cancel_of_another_attempt_changes_nothing() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            orders = cluster.orders(star(2))
            cluster.begin(orders)
            cluster.hosts[0].plane.cancel(EntryIndex(1), Ballot(1, node_id(0)))
            cluster.compute(orders)
            await cluster.check_result(orders)

    run(scenario())


@pytest.mark.parametrize(
    ("killed", "phase"),
    [
        (2, "reduce: waiting for chunk 2 of lab-2"),
        (0, "broadcast: waiting for chunk 2 of lab-0"),
    ],
)
def test_a_neighbour_that_dies_in_the_middle_is_named_with_the_phase(
    killed: int, phase: str
) -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            # Small first buckets: everybody has two chunks of the result before the death.
            layout = BucketLayout((16, 16, 4096))
            orders = cluster.orders(chain(3), layout=layout, window_chunks=3)
            cluster.begin(orders)
            for host in cluster.hosts:
                host.compute(buckets=2 if host.number == killed else None)
            await until(lambda: cluster.hosts[1].plane.phase() == phase)
            await cluster.hosts[killed].close()
            event = await cluster.hosts[1].broken()
            assert event.peer == node_id(killed)
            assert event.phase == phase
            assert "closed the connection" in event.reason
            assert cluster.hosts[1].plane.phase() == "idle"

    run(scenario())


def test_a_connection_lost_between_attempts_is_dialled_again() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            for index in (1, 2, 3):
                orders = cluster.orders(chain(3), index=index)
                cluster.begin(orders)
                cluster.compute(orders)
                await cluster.check_result(orders)
                cluster.hosts[1].accepted[-1].abort()
                cluster.hosts[1].dialled[-1].abort()
            assert [host.dials for host in cluster.hosts] == [0, 3, 3]

    run(scenario())


def test_a_connection_lost_before_the_parent_began_is_replaced_and_everything_sent_again() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            orders = cluster.orders(chain(3))
            for number in (2, 1):
                cluster.hosts[number].begin(orders[number])
                cluster.hosts[number].compute()
            await stalled(cluster.hosts[1])
            await until(lambda: len(cluster.hosts[1].dialled) == 1)
            cluster.hosts[1].dialled[0].abort()
            await until(lambda: len(cluster.hosts[0].accepted) == 2)
            cluster.hosts[0].begin(orders[0])
            cluster.hosts[0].compute()
            await cluster.check_result(orders)

    run(scenario())


def test_a_parent_that_cannot_be_reached_breaks_the_attempt_within_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("greedw_daemon.data_plane.DIAL_DEADLINE_S", 0.3)

    async def scenario() -> None:
        async with Cluster(2) as cluster:
            cluster.hosts[0].server.close()
            await cluster.hosts[0].server.wait_closed()
            cluster.hosts[1].begin(cluster.orders(star(2))[1])
            event = await cluster.hosts[1].broken()
            assert event.peer == node_id(0)
            assert event.phase == "connecting to lab-0"
            assert "no bulk connection within 0.3 s" in event.reason
            assert "refused" in event.reason.lower()
            assert cluster.hosts[1].dials > 1

    run(scenario())


@pytest.mark.parametrize("field", ["view_digest", "plan_digest"])
def test_another_view_or_plan_is_found_at_both_ends_and_the_connection_survives(
    field: str,
) -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            orders = cluster.orders(star(2))
            odd: dict[str, Any] = {field: b"x" * 16}
            cluster.hosts[0].begin(orders[0])
            cluster.hosts[1].begin(replace(orders[1], **odd))
            cluster.compute([0, 1])
            for host, peer in ((cluster.hosts[0], 1), (cluster.hosts[1], 0)):
                event = await host.broken()
                assert event.peer == node_id(peer)
                assert f"lab-{peer}" in event.reason
                assert field.removesuffix("_digest") in event.reason
            again = cluster.orders(star(2), index=2)
            cluster.begin(again)
            cluster.compute(again)
            await cluster.check_result(again)
            assert cluster.hosts[1].dials == 1

    run(scenario())


def test_a_child_that_is_none_by_the_plan_is_refused_by_name() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            orders = cluster.orders({1: 0, 2: 0})
            astray = cluster.orders({1: 0, 2: 1})
            cluster.hosts[1].begin(orders[1])
            cluster.hosts[2].begin(astray[2])
            event = await cluster.hosts[1].broken()
            assert event.peer == node_id(2)
            assert "lab-2 opened a stream, but is no child" in event.reason

    run(scenario())


def test_a_new_lineage_waits_for_those_behind_and_skips_what_is_left_of_the_old_one() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            old = cluster.orders(chain(3), index=9)
            cluster.begin(old)
            cluster.compute([2, 1])
            await stalled(cluster.hosts[2])
            new = cluster.orders(chain(3), index=2, lineage=LineageId("cd" * 16))
            for number in (2, 1):
                cluster.hosts[number].begin(new[number])
                cluster.hosts[number].compute()
            await stalled(cluster.hosts[1])
            cluster.hosts[0].begin(new[0])
            cluster.hosts[0].compute()
            await cluster.check_result(new)

    run(scenario())


def test_figures_of_the_last_attempt_are_kept() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            orders = cluster.orders(star(2))
            for index in (1, 2):
                orders = cluster.orders(star(2), index=index)
                cluster.begin(orders)
                cluster.compute(orders)
                await cluster.check_result(orders)
            for host in cluster.hosts:
                plane = host.plane
                assert 0 <= plane.last_wait_us() <= plane.last_transfer_us()
                assert LAYOUT.nbytes < plane.sent_bytes < 1.1 * LAYOUT.nbytes + 2000

    run(scenario())


def test_many_rounds_over_random_trees_and_pieces_all_end_with_the_right_bytes() -> None:
    async def scenario() -> None:
        rng = np.random.default_rng(5)
        async with Cluster(5) as cluster:
            for index in range(1, 25):
                places = [int(number) for number in rng.permutation(5)]
                parents = {places[at]: places[int(rng.integers(at))] for at in range(1, 5)}
                orders = cluster.orders(
                    parents,
                    index=index,
                    chunk_bytes=int(rng.choice([64, 1000, 4096, 65_536])),
                    window_chunks=int(rng.choice([1, 2, 9, 64])),
                    send_buffer_bytes=int(rng.choice([0, 4096, 65_536])),
                )
                for number in map(int, rng.permutation(5)):
                    cluster.hosts[number].begin(orders[number])
                    if rng.random() < 0.5:
                        await asyncio.sleep(0)
                    cluster.hosts[number].compute()
                await cluster.check_result(orders)

    run(scenario())
