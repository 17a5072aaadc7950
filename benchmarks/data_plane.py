"""Times the data plane: one process per node on loopback, a static tree, all sums ready at once.

    python benchmarks/data_plane.py --nodes 4 --tree chain --megabytes 0.8 6.65 --chunk-kib 32

Prints milliseconds per all-reduce, from the first start to the last end, median and minimum. The
result is compared on every node. Nothing is shaped: this measures the CPU, not a network.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, cast

import numpy as np
import uvloop

from greedw_daemon.data_plane.plane import AttemptOrder, DataPlane, Regions
from greedw_daemon.log_setup import configure
from greedw_p2p.ids import Ballot, EntryIndex, Incarnation, LineageId, MemberId, NodeId
from greedw_p2p.kernels import summation
from greedw_p2p.log.entry import RoundOutcome
from greedw_p2p.node.events import AttemptBroken, AttemptFinished
from greedw_p2p.reduction.layout import BucketLayout
from greedw_p2p.view import RoundReport
from greedw_p2p.wire.messages import Contribution

ID_BYTES = 32


@dataclass(frozen=True)
class Setting:
    """One line of the table."""

    nodes: int
    tree: str
    elements: int
    chunk_bytes: int
    send_buffer_bytes: int
    window_chunks: int
    rounds: int


def member(number: int) -> MemberId:
    """Return the id of a node by its number."""
    return MemberId(NodeId(f"{number:032x}"), Incarnation(1))


def parent_of(number: int, tree: str) -> int | None:
    """Return the parent of a node, None for node 0, the root."""
    if number == 0:
        return None
    return number - 1 if tree == "chain" else 0


class Greeting(asyncio.BufferedProtocol):
    """Reads a greeting of known size, pauses, and hands the transport over."""

    def __init__(self, nbytes: int, greeted: Callable[[asyncio.Transport, bytes], None]) -> None:
        self._view, self._filled, self._greeted = memoryview(bytearray(nbytes)), 0, greeted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the rest of the greeting."""
        del sizehint
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Hand over when it is whole."""
        self._filled += nbytes
        if self._filled == len(self._view):
            self._transport.pause_reading()
            self._greeted(self._transport, bytes(self._view))


class BenchNode:
    """The node of one process; the parent process says when to listen, start and stop."""

    def __init__(self, number: int, setting: Setting, pipe: "Connection[Any, Any]") -> None:
        self.number, self.setting, self.pipe = number, setting, pipe
        self.ports: list[int] = []
        self.ended: asyncio.Future[AttemptFinished | AttemptBroken]
        own = np.random.default_rng(number).standard_normal(setting.elements).astype(np.float32)
        self.regions = Regions(own, np.zeros(setting.elements, np.float32))
        self.plane = DataPlane(
            me=member(number),
            dial=self._dial,
            name_of=lambda node: str(int(node, 16)),
            on_finished=self._end,
            on_broken=self._end,
        )

    async def run(self) -> None:
        """Serve all rounds."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Greeting(ID_BYTES, self._accept), "127.0.0.1", 0)
        self.pipe.send(server.sockets[0].getsockname()[1])
        self.ports = await self._next()
        layout = BucketLayout((self.setting.elements,))
        for index in range(1, self.setting.rounds + 1):
            await self._next()
            started_s = time.monotonic()
            self.ended = loop.create_future()
            self._begin(index, layout)
            event = await self.ended
            assert isinstance(event, AttemptFinished), event
            self.pipe.send((started_s, time.monotonic(), event.digest))
        await self._next()
        await self.plane.close()
        server.close()
        await server.wait_closed()

    def _begin(self, index: int, layout: BucketLayout) -> None:
        setting, number = self.setting, self.number
        ballot = Ballot(0, member(0).node)
        parent = parent_of(number, setting.tree)
        every = range(setting.nodes)
        children = [n for n in every if parent_of(n, setting.tree) == number]
        order = AttemptOrder(
            lineage=LineageId("0" * 32),
            index=EntryIndex(index),
            ballot=ballot,
            tree=0,
            view_digest=b"",
            plan_digest=b"",
            me=member(number),
            parent=None if parent is None else member(parent).node,
            children=tuple(member(child).node for child in children),
            layout=layout,
            chunk_bytes=setting.chunk_bytes,
            window_chunks=setting.window_chunks,
            send_buffer_bytes=setting.send_buffer_bytes,
            divisor=setting.nodes,
            total_units=setting.nodes,
            participants=tuple(member(n) for n in every),
        )
        self.plane.begin(order, self.regions)
        self.plane.own_bucket_ready(order.index, ballot, 0)
        self.plane.own_finished(
            order.index,
            ballot,
            Contribution(member(number), number, 1),
            RoundOutcome(1, 0.0, 0),
            RoundReport(member(number).node, 1, 0, 0, 0, 0, 0),
            (),
        )

    def _end(self, event: AttemptFinished | AttemptBroken) -> None:
        self.ended.set_result(event)

    async def _next(self) -> Any:  # noqa: ANN401 - ports, or a word
        """Wait for the parent process's next word."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self.pipe.fileno(), readable.set)
        await readable.wait()
        loop.remove_reader(self.pipe.fileno())
        return self.pipe.recv()

    async def _dial(self, node: NodeId, tree: int) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        taken: asyncio.Future[asyncio.Transport] = loop.create_future()
        transport, _ = await loop.create_connection(
            lambda: Greeting(1, lambda transport, _: taken.set_result(transport)),
            "127.0.0.1",
            self.ports[int(node, 16)],
        )
        transport.write(member(self.number).node.encode())
        return await taken

    def _accept(self, transport: asyncio.Transport, greeting: bytes) -> None:
        transport.write(b"+")
        self.plane.adopt(MemberId(NodeId(greeting.decode()), Incarnation(1)), transport)


def serve(number: int, setting: Setting, pipe: "Connection[Any, Any]") -> None:
    """Be one node, in a process of its own."""
    configure(node=f"node-{number}", log_format="text", level="warning")
    summation.warm()
    uvloop.run(BenchNode(number, setting, pipe).run())


def measure(setting: Setting) -> list[float]:
    """Return the milliseconds of each round after the first."""
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection[Any, Any]] = []
    processes: list[BaseProcess] = []
    for number in range(setting.nodes):
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(number, setting, theirs), daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)
    ports = [pipe.recv() for pipe in pipes]
    for pipe in pipes:
        pipe.send(ports)
    times_ms: list[float] = []
    for _ in range(setting.rounds):
        for pipe in pipes:
            pipe.send("go")
        answers = [pipe.recv() for pipe in pipes]
        assert len({digest for _, _, digest in answers}) == 1, "results differ"
        begin, end = min(a[0] for a in answers), max(a[1] for a in answers)
        times_ms.append(1000 * (end - begin))
    for pipe, served in zip(pipes, processes, strict=True):
        pipe.send("stop")
        served.join()
    return times_ms[1:]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--tree", choices=("chain", "star"), nargs="+", default=["chain", "star"])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.8])
    parser.add_argument("--chunk-kib", type=int, default=32)
    parser.add_argument("--send-buffer-kib", type=int, default=128)
    parser.add_argument("--window-mib", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    for tree in options.tree:
        for megabytes in options.megabytes:
            setting = Setting(
                nodes=options.nodes,
                tree=tree,
                elements=round(megabytes * 1e6 / 64) * 16,
                chunk_bytes=options.chunk_kib * 1024,
                send_buffer_bytes=options.send_buffer_kib * 1024,
                window_chunks=options.window_mib * 1024 // options.chunk_kib,
                rounds=options.rounds + 1,
            )
            times_ms = measure(setting)
            sys.stdout.write(
                f"{setting.nodes} nodes, {tree}, {megabytes} MB, {options.chunk_kib} KiB chunks:"
                f" median {statistics.median(times_ms):.2f} ms, least {min(times_ms):.2f} ms\n"
            )


if __name__ == "__main__":
    main()
