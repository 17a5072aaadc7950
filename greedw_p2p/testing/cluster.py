"""A whole cluster in one process: real nodes, virtual time, seeded delays and faults.

The same seed gives the same run, to the last effect; the trace digest says so.
"""

import functools
import hashlib
import random
from collections.abc import Callable
from typing import Final

from greedw_p2p.config import Address, Config
from greedw_p2p.ids import (
    Ballot,
    ClusterId,
    ContentDigest,
    EntryIndex,
    JobId,
    LineageId,
    NodeId,
    StateDigest,
)
from greedw_p2p.jobs.spec import JobSpec
from greedw_p2p.limits import TICK_US
from greedw_p2p.node import effects, events
from greedw_p2p.node.boot import Boot
from greedw_p2p.node.status import NodeStatus
from greedw_p2p.testing.host import SimHost
from greedw_p2p.testing.network import Agenda, Network, NetworkOptions
from greedw_p2p.testing.oracle import Oracle, ViolationError
from greedw_p2p.testing.worker import BulkItem

CLUSTER: Final = ClusterId("c" * 32)
INITIAL_STATE: Final = StateDigest(b"initial state 00")
DIAL_US: Final = 300
FORM_US: Final = 30_000_000
LOOK_EVERY_US: Final = 5_000


class SimCluster:
    """Hosts, network, time and oracle. Host 0 founds the cluster; the others are told to join."""

    def __init__(
        self, hosts: int, seed: int, options: NetworkOptions | None = None, replay: str = ""
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)  # noqa: S311 - a simulation is seeded, not secret
        self.agenda = Agenda()
        self.network = Network(self.agenda, random.Random(seed + 1), options or NetworkOptions())  # noqa: S311
        self.oracle = Oracle(lambda: f"replay: {replay or f'SimCluster({hosts}, seed={seed})'}")
        self.hosts = [self._host(number) for number in range(hosts)]
        self._by_node = {host.node_id: host for host in self.hosts}
        self.loses: Callable[[SimHost, effects.Send], bool] = lambda _host, _send: False
        """Tells which control messages get lost, as they do when a connection breaks."""

        self._links: set[tuple[NodeId, NodeId]] = set()
        self._dialling: set[tuple[NodeId, NodeId]] = set()
        self._fetches: dict[tuple[NodeId, NodeId], effects.FetchResult] = {}
        self._requests = 0
        self._trace = hashlib.blake2b(digest_size=16)
        self._lineage = LineageId(f"{seed % 2**64:032x}")

    @classmethod
    def formed(cls, hosts: int, seed: int, options: NetworkOptions | None = None) -> "SimCluster":
        """Return a cluster of which all hosts are members."""
        cluster = cls(hosts, seed, options)
        cluster.found()
        cluster.run_for(TICK_US)
        for number in range(1, hosts):
            cluster.join(number)
        cluster.run_until(lambda: cluster.are_members(*range(hosts)), within_us=FORM_US)
        return cluster

    # -- running ------------------------------------------------------------------------------

    def found(self) -> SimHost:
        """Start host 0 as the founder."""
        founder = self.hosts[0]
        founder.disk.incarnation = 1
        config = Config((founder.member,))
        self.oracle.founded(self._lineage, config)
        self._start(founder, Boot(CLUSTER, "sim", self._lineage, EntryIndex(0), config, ()))
        return founder

    def join(self, number: int) -> None:
        """Start a host as a newcomer that knows the hosts that are up."""
        host = self.hosts[number]
        contacts = tuple(h.member for h in self.hosts if h.is_up and h is not host)
        host.disk.incarnation += 1
        self._start(host, Boot(CLUSTER, "sim", self._lineage, EntryIndex(0), None, contacts))

    def restart(self, number: int) -> None:
        """Start a host that crashed from what is on its disk, as a new life."""
        host = self.hosts[number]
        host.disk.incarnation += 1
        config = host.disk.config
        contacts = () if config is None else config.members
        lineage = host.disk.lineage or self._lineage
        boot = Boot(CLUSTER, "sim", lineage, host.disk.committed_index, config, contacts)
        self._start(host, boot)
        assert host.node is not None, "it was started"
        if host.node.lineage != lineage:
            self.oracle.founded(host.node.lineage, Config((host.member,)))

    def crash(self, number: int) -> None:
        """Kill a host's process: its connections end, its memory is gone."""
        host = self.hosts[number]
        host.crash()
        self._drop_links_of(host)

    def pause(self, number: int, for_us: int) -> None:
        """Stop a host's process for a while; connections stay."""
        self.hosts[number].paused_until_us = self.agenda.now_us + for_us

    def drop_connection(self, one: int, other: int) -> None:
        """Reset the control connection between two hosts."""
        a, b = self.hosts[one], self.hosts[other]
        self._disconnect(a.node_id, b.node_id, "connection reset by peer")

    def drop_bulk(self, one: int, other: int) -> None:
        """Reset the bulk connection between two hosts; the attempt that uses it is broken."""
        a, b = self.hosts[one], self.hosts[other]
        self.network.cut(a.node_id, b.node_id, "bulk")
        a.bulk_lost(b.node_id)
        b.bulk_lost(a.node_id)

    def leave(self, number: int) -> int:
        """Ask a host to leave; returns the request's number."""
        self._requests += 1
        self.hosts[number].deliver(events.Leave(self._requests))
        return self._requests

    def submit(self, number: int, *, samples: int = 64, epochs: int = 2, batch: int = 16) -> JobId:
        """Submit a job at a host."""
        self._requests += 1
        spec = JobSpec(
            id=JobId(f"sim-{self._requests}"),
            kind="mnist-2nn",
            data_dir="",
            data_digest=ContentDigest(b"data"),
            samples=samples,
            held_out=8,
            epochs=epochs,
            batch=batch,
            learning_rate=0.1,
            momentum=0.9,
            seed=self.seed % 2**32,
        )
        self.hosts[number].load_here(spec, INITIAL_STATE)
        self.hosts[number].deliver(events.SubmitJob(self._requests, spec, INITIAL_STATE))
        return spec.id

    def evict(self, number: int, victim: int) -> int:
        """Ask a host to have another one removed for good; returns the request's number."""
        self._requests += 1
        who = self.hosts[victim].name
        self.hosts[number].deliver(events.EvictMember(self._requests, who))
        return self._requests

    def stop_job(self, number: int, job: JobId) -> int:
        """Ask to stop a job; returns the request's number."""
        self._requests += 1
        self.hosts[number].deliver(events.StopJob(self._requests, job))
        return self._requests

    def run_for(self, duration_us: int) -> None:
        """Let virtual time pass."""
        self.run_until(lambda: False, within_us=duration_us, demand=False)

    def run_until(
        self, condition: Callable[[], bool], *, within_us: int, demand: bool = True
    ) -> bool:
        """Run until the condition holds; a stall if it does not in time and is demanded."""
        deadline_us = self.agenda.now_us + within_us
        while not condition():
            # Not after every event: conditions look at every host, and most events change none.
            looked_us = self.agenda.now_us
            while self.agenda.now_us < looked_us + LOOK_EVERY_US:
                running = self.agenda.step()
                if self.agenda.now_us <= deadline_us and running:
                    continue
                if demand and not condition():
                    raise ViolationError(f"stalled for {within_us / 1e6} s\n{self.describe()}")
                return condition()
        return True

    # -- looking ------------------------------------------------------------------------------

    def status(self, number: int) -> NodeStatus:
        """Return what a host tells of itself."""
        node = self.hosts[number].node
        assert node is not None, f"host {number} is down"
        return node.status(self.agenda.now_us)

    def statuses(self) -> list[NodeStatus]:
        """Return the status of every host that is up."""
        return [self.status(n) for n, host in enumerate(self.hosts) if host.is_up]

    def are_members(self, *numbers: int) -> bool:
        """Tell whether exactly these hosts are the members, as each of them sees it."""
        wanted = sorted(self.hosts[n].name for n in numbers)
        return all(
            self.hosts[n].is_up and sorted(m.name for m in self.status(n).members) == wanted
            for n in numbers
        )

    def job_state(self, number: int) -> str:
        """Return the state of the newest job, as a host tells it; empty without one."""
        jobs = self.status(number).jobs
        return jobs[-1].state if jobs else ""

    def trace_digest(self) -> str:
        """Return the digest of every effect so far, with its time and host."""
        return self._trace.hexdigest()

    def describe(self) -> str:
        """Return what each host is doing, and how to replay."""
        lines = [f"t={self.agenda.now_us / 1e6:.3f} s, seed={self.seed}"]
        for status in self.statuses():
            jobs = [(job.id, job.state, job.round, job.reason) for job in status.jobs]
            lines.append(f"{status.name}: {status.state} entry {status.committed} {jobs}")
            lines.append(f"    pause: {status.pause!r}")
        return "\n".join(lines)

    # -- what hosts ask for (Wires) -----------------------------------------------------------

    def send_control(self, host: SimHost, effect: effects.Send) -> None:
        """Deliver in order, if the connection stands."""
        assert host.node is not None, "only a running node sends"
        target = self._by_node[effect.to.node]
        if (host.node_id, target.node_id) not in self._links:
            return
        sender, lineage = host.member.id, host.node.lineage
        self.oracle.sent(sender, lineage, effect.message)
        if self.loses(host, effect):
            return

        def deliver() -> None:
            if target.is_up and target.member.id == effect.to:
                target.deliver(events.MessageReceived(sender, lineage, effect.message))

        self.network.send(host.node_id, target.node_id, "control", deliver)

    def send_bulk(
        self, host: SimHost, to: NodeId, attempt: tuple[EntryIndex, Ballot], item: BulkItem
    ) -> None:
        """Deliver on the tree edge."""
        target = self._by_node[to]
        sender = host.node_id
        self.network.send(sender, to, "bulk", lambda: target.bulk_arrived(sender, attempt, item))

    def dial(self, host: SimHost, effect: effects.Dial) -> None:
        """Connect the two hosts after a moment, if the other is up."""
        target = self._by_node[effect.node]
        pair = (host.node_id, target.node_id)
        if pair in self._links or pair in self._dialling:
            return
        self._dialling.add(pair)
        life = host.member.id

        def connect() -> None:
            self._dialling.discard(pair)
            if not host.is_up or host.member.id != life or pair in self._links:
                return
            if not target.is_up:
                host.deliver(events.DialFailed(effect.node, "connection refused"))
                return
            self._links.update({pair, (pair[1], pair[0])})
            host.deliver(events.PeerConnected(target.member))
            target.deliver(events.PeerConnected(host.member))

        self.agenda.after(DIAL_US, connect)

    def fetch(self, host: SimHost, effect: effects.FetchResult) -> None:
        """Bring a result's bytes over the control connection, if it stands and they are there."""
        holder = self._by_node[effect.holder]
        pair = (host.node_id, holder.node_id)
        if pair not in self._links:
            host.fetch_failed(effect, "not connected")
            return
        self._fetches[pair] = effect

        def answer() -> None:
            if self._fetches.pop(pair, None) is not effect:
                return
            values = holder.serve(effect.digest)
            if values is None:
                host.fetch_failed(effect, "it does not have the bytes")
            else:
                host.fetched(effect, values)

        def ask() -> None:
            self.network.send(holder.node_id, host.node_id, "control", answer)

        self.network.send(host.node_id, holder.node_id, "control", ask)

    def unit_us_of(self, node: NodeId) -> int:
        """Return how long a host computes at a sample."""
        return self._by_node[node].unit_us

    def ended(self, host: SimHost) -> None:
        """Close the connections of a host that has stopped, after what was sent on them."""
        life = host.member

        def close(one: NodeId, other: NodeId) -> None:
            if host.member == life:
                self._disconnect(one, other, "it closed the connection")

        for one, other in sorted(self._links):
            if one == host.node_id:
                self.network.send(one, other, "control", functools.partial(close, one, other))

    def observe(self, host: SimHost, effect: effects.Effect) -> None:
        """Write the trace and show the effect to the oracle."""
        self._trace.update(f"{self.agenda.now_us} {host.name} {effect!r}\n".encode())
        if isinstance(effect, effects.Committed):
            assert host.node is not None, "only a running node commits"
            self.oracle.committed(host.member.id, host.node.lineage, effect.entry)
        elif isinstance(effect, effects.FlipState):
            self.oracle.flipped(host.member.id, effect.entry_id)

    # -- inside ---------------------------------------------------------------------------------

    def _host(self, number: int) -> SimHost:
        node_id = NodeId(f"{random.Random(self.seed * 1000 + number).getrandbits(128):032x}")  # noqa: S311
        address = Address(f"10.0.{number // 250}.{number % 250 + 1}", 7946)
        return SimHost(node_id, f"host-{number}", address, self.agenda, self)

    def _start(self, host: SimHost, boot: Boot) -> None:
        host.start(boot, self.rng.getrandbits(32))
        life = host.member
        offset_us = self.rng.randrange(TICK_US)

        def tick() -> None:
            if host.is_up and host.member == life:
                host.deliver(events.Ticked())
                self.agenda.after(TICK_US, tick)

        self.agenda.after(offset_us, tick)

    def _drop_links_of(self, host: SimHost) -> None:
        for one, other in sorted(self._links):
            if one == host.node_id:
                self._disconnect(one, other, "connection closed by peer")
        for other_host in self.hosts:
            self.network.cut(host.node_id, other_host.node_id, "bulk")
            other_host.bulk_lost(host.node_id)

    def _disconnect(self, one: NodeId, other: NodeId, reason: str) -> None:
        if (one, other) not in self._links:
            return
        self._links -= {(one, other), (other, one)}
        self.network.cut(one, other, "control")
        for near, far in ((one, other), (other, one)):
            near_host, far_member = self._by_node[near], self._by_node[far].member
            fetch = self._fetches.pop((near, far), None)
            if fetch is not None:
                near_host.fetch_failed(fetch, reason)
            if near_host.is_up:
                near_host.deliver(events.PeerDisconnected(far_member.id, reason))


def member_names(cluster: SimCluster, number: int) -> tuple[str, ...]:
    """Return the members' names as a host tells them, senior first."""
    return tuple(member.name for member in cluster.status(number).members)
