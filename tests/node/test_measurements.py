"""What is measured of links while nodes come and go, by the messages of a simulated cluster."""

from greedw_p2p.ids import NodeId
from greedw_p2p.node import effects
from greedw_p2p.testing.cluster import SimCluster
from greedw_p2p.testing.host import SimHost
from greedw_p2p.wire.messages import Gossip, ProbeChunk

SECOND_US = 1_000_000


class Overheard(SimCluster):
    """A cluster that keeps what is told of links, and when probes are sent."""

    def __init__(self, hosts: int, seed: int) -> None:
        super().__init__(hosts, seed)
        self.told: set[NodeId] = set()
        self.probes: list[tuple[int, NodeId, NodeId]] = []

    def send_control(self, host: SimHost, effect: effects.Send) -> None:
        match effect.message:
            case Gossip(links=links):
                self.told.update(node for cell in links for node in (cell.writer, cell.peer))
            case ProbeChunk(number=0):
                self.probes.append((self.agenda.now_us, host.node_id, effect.to.node))
            case _:
                pass
        super().send_control(host, effect)


def formed(hosts: int, seed: int) -> Overheard:
    """Return a cluster of which all hosts are members, with all links measured."""
    cluster = Overheard(hosts, seed)
    cluster.found()
    cluster.run_for(300_000)
    for number in range(1, hosts):
        cluster.join(number)
    cluster.run_until(lambda: cluster.are_members(*range(hosts)), within_us=30 * SECOND_US)
    cluster.run_for(30 * SECOND_US)
    return cluster


def test_links_of_a_node_that_left_are_told_no_more() -> None:
    cluster = formed(4, seed=61)
    leaver = cluster.hosts[2].node_id
    assert leaver in cluster.told
    cluster.leave(2)
    cluster.run_until(lambda: cluster.hosts[2].stopped is not None, within_us=20 * SECOND_US)
    for number in (0, 1, 3):
        cluster.drop_connection(2, number)
    cluster.run_for(30 * SECOND_US)
    cluster.told.clear()
    cluster.run_for(30 * SECOND_US)
    assert cluster.told == {host.node_id for n, host in enumerate(cluster.hosts) if n != 2}


def test_links_of_a_member_that_lost_its_memory_are_probed_again_from_both_ends() -> None:
    cluster = formed(3, seed=67)
    victim = next(n for n in range(3) if cluster.status(n).name != cluster.status(n).leader)
    cluster.crash(victim)
    cluster.run_for(5 * SECOND_US)
    cluster.probes.clear()
    cluster.restart(victim)
    cluster.run_for(20 * SECOND_US)
    node = cluster.hosts[victim].node_id
    others = {host.node_id for host in cluster.hosts} - {node}
    pairs = {(sender, to) for _, sender, to in cluster.probes}
    assert pairs >= {(node, other) for other in others} | {(other, node) for other in others}


def test_no_node_probes_while_it_takes_part_in_an_attempt() -> None:
    cluster = formed(3, seed=71)
    cluster.probes.clear()
    cluster.submit(0, samples=400, epochs=200, batch=40)
    cluster.run_until(lambda: cluster.job_state(0) == "running", within_us=20 * SECOND_US)
    victim = next(n for n in range(3) if cluster.status(n).name != cluster.status(n).leader)
    others = [n for n in range(3) if n != victim]
    # A paused host holds the attempt up, and the links to it are those to be measured anew.
    cluster.drop_connection(*others)
    cluster.pause(victim, for_us=3 * SECOND_US)
    before = len(cluster.probes)
    cluster.run_for(2 * SECOND_US)
    assert len(cluster.probes) == before
    cluster.run_until(lambda: cluster.job_state(0) == "finished", within_us=300 * SECOND_US)
    cluster.run_for(20 * SECOND_US)
    assert len(cluster.probes) > before
