"""What once brought a cluster, a node or a user's request to a halt: an example of each."""

import pytest

from greedw_p2p.config import Member
from greedw_p2p.ids import Incarnation, LineageId, NodeId
from greedw_p2p.limits import MEMBERS_MAX
from greedw_p2p.log.entry import EntryKind
from greedw_p2p.membership.rumour import Liveness, Rumour
from greedw_p2p.node import events
from greedw_p2p.node.effects import Send
from greedw_p2p.testing.cluster import SimCluster
from greedw_p2p.testing.host import SimHost
from greedw_p2p.testing.network import NetworkOptions
from greedw_p2p.wire.messages import (
    Accept,
    Broken,
    Commit,
    Declined,
    Entries,
    Fault,
    Gossip,
    PrepareJob,
    Start,
)

SECOND_US = 1_000_000


def training(hosts: int, seed: int) -> SimCluster:
    cluster = SimCluster.formed(hosts, seed)
    cluster.submit(hosts - 1, epochs=20)
    cluster.run_until(lambda: cluster.job_state(0) == "running", within_us=20 * SECOND_US)
    return cluster


def finished(cluster: SimCluster, *numbers: int) -> bool:
    return all(cluster.job_state(number) == "finished" for number in numbers)


def leader_of(cluster: SimCluster) -> int:
    leader = cluster.status(0).leader
    return next(n for n, host in enumerate(cluster.hosts) if host.name == leader)


def errors_of(cluster: SimCluster, number: int) -> list[str]:
    return [reply.error for reply in cluster.hosts[number].replies]


class Losing:
    """Loses the first messages of a kind between each pair of hosts."""

    def __init__(self, kind: type, count: int = 1) -> None:
        self.kind, self.count = kind, count
        self.lost: dict[tuple[str, str], int] = {}

    def __call__(self, host: SimHost, send: Send) -> bool:
        pair = (host.name, send.to.node)
        if not isinstance(send.message, self.kind) or self.lost.get(pair, 0) == self.count:
            return False
        self.lost[pair] = self.lost.get(pair, 0) + 1
        return True


class CutAtAccept:
    """Loses what is on its way down the tree in the moment the first round is proposed."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster, self.is_done = cluster, False

    def __call__(self, host: SimHost, send: Send) -> bool:
        message = send.message
        is_round = isinstance(message, Accept) and message.entry.kind is EntryKind.ROUND
        if is_round and not self.is_done:
            self.is_done = True
            for one in self.cluster.hosts:
                for other in self.cluster.hosts:
                    self.cluster.network.cut(one.node_id, other.node_id, "bulk")
        return False


# -- newcomers and stragglers ---------------------------------------------------------------------


def test_newcomer_that_comes_during_a_job_is_admitted_when_the_job_has_ended() -> None:
    cluster = SimCluster(3, seed=2)
    cluster.found()
    cluster.join(1)
    cluster.run_until(lambda: cluster.are_members(0, 1), within_us=30 * SECOND_US)
    cluster.submit(0, epochs=60)
    cluster.run_until(lambda: cluster.job_state(1) == "running", within_us=20 * SECOND_US)
    cluster.join(2)
    cluster.run_for(SECOND_US)
    assert "when job sim-1 has ended" in cluster.status(2).pause
    cluster.run_until(lambda: finished(cluster, 0, 1), within_us=60 * SECOND_US)
    cluster.run_until(lambda: cluster.are_members(0, 1, 2), within_us=5 * SECOND_US)


@pytest.mark.parametrize("seed", range(6))
def test_newcomer_is_not_admitted_by_the_entry_that_starts_a_job(seed: int) -> None:
    cluster = SimCluster(3, seed, NetworkOptions(delay_us_min=20_000, delay_us_max=60_000))
    cluster.found()
    cluster.join(1)
    cluster.run_until(lambda: cluster.are_members(0, 1), within_us=30 * SECOND_US)
    cluster.join(2)
    cluster.run_for(350_000)
    cluster.submit(0)
    cluster.run_until(lambda: finished(cluster, 0, 1), within_us=60 * SECOND_US)


def test_member_that_missed_more_entries_than_are_kept_takes_part_again() -> None:
    cluster = SimCluster(9, seed=6)
    cluster.found()
    for number in (1, 2):
        cluster.join(number)
    cluster.run_until(lambda: cluster.are_members(0, 1, 2), within_us=30 * SECOND_US)
    cluster.run_for(8 * SECOND_US)
    away = next(n for n in (2, 1) if n != leader_of(cluster))
    near = 3 - away
    before = cluster.status(0).committed
    cluster.pause(away, for_us=60 * SECOND_US)
    for number in range(3, 9):
        cluster.join(number)
        cluster.run_for(3 * SECOND_US)
        cluster.leave(number)
        cluster.run_for(3 * SECOND_US)
    assert cluster.status(0).committed > before + 8
    cluster.run_for(40 * SECOND_US)
    cluster.submit(near)
    cluster.run_until(lambda: finished(cluster, 0, 1, 2), within_us=20 * SECOND_US)


def test_nodes_that_come_and_go_do_not_fill_gossip_beyond_a_message() -> None:
    cluster = SimCluster.formed(3, seed=7)
    longest = 0

    def measure(_host: SimHost, send: Send) -> bool:
        nonlocal longest
        if isinstance(send.message, Gossip):
            longest = max(longest, len(send.message.rumours))
        return False

    cluster.loses = measure
    life = cluster.hosts[1].member
    for batch in range(4):
        rumours = tuple(
            Rumour(
                Member(NodeId(f"{batch:02x}{number:030x}"), Incarnation(1), "gone", life.address),
                0,
                Liveness.LEFT,
            )
            for number in range(150)
        )
        message = Gossip(rumours, (), answer=False)
        lineage = LineageId(cluster.status(0).lineage)
        cluster.hosts[0].deliver(events.MessageReceived(life.id, lineage, message))
        cluster.run_for(SECOND_US)
    cluster.run_for(15 * SECOND_US)
    assert 32 < longest <= MEMBERS_MAX
    assert cluster.are_members(0, 1, 2)


# -- lost messages and lost bytes -----------------------------------------------------------------


@pytest.mark.parametrize("kind", [Start, Accept, Commit, PrepareJob])
def test_round_ends_though_the_first_messages_of_a_kind_are_lost(kind: type) -> None:
    cluster = SimCluster.formed(4, seed=8)
    cluster.loses = Losing(kind, 2)
    cluster.submit(1)
    cluster.run_until(lambda: finished(cluster, *range(4)), within_us=60 * SECOND_US)


@pytest.mark.parametrize("pair", [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])
def test_broken_attempt_is_replaced_though_the_word_of_it_is_lost(pair: tuple[int, int]) -> None:
    cluster = training(4, seed=17)
    cluster.loses = Losing(Broken)
    cluster.run_for(50_000)
    cluster.drop_bulk(*pair)
    cluster.run_until(lambda: finished(cluster, *range(4)), within_us=60 * SECOND_US)


@pytest.mark.parametrize("seed", range(6))
def test_result_that_got_lost_in_the_tree_is_fetched(seed: int) -> None:
    cluster = SimCluster.formed(5, seed)
    cluster.loses = CutAtAccept(cluster)
    cluster.submit(0)
    cluster.run_until(lambda: finished(cluster, *range(5)), within_us=60 * SECOND_US)


@pytest.mark.parametrize("seed", range(6))
def test_job_ends_also_where_the_result_of_its_last_round_never_comes(seed: int) -> None:
    cluster = SimCluster.formed(5, seed)
    cut = CutAtAccept(cluster)
    cluster.loses = cut
    job = cluster.submit(0, epochs=100)
    cluster.run_until(lambda: cut.is_done, within_us=20 * SECOND_US)
    for number in range(5):
        cluster.stop_job(number, job)
    cluster.run_until(
        lambda: all(cluster.job_state(n) == "stopped" for n in range(5)), within_us=30 * SECOND_US
    )
    cluster.submit(1)
    cluster.run_until(lambda: finished(cluster, *range(5)), within_us=60 * SECOND_US)


# -- leaving --------------------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", [2, 3, 5])
@pytest.mark.parametrize("seed", range(8))
def test_all_that_leave_within_a_tick_get_out(hosts: int, seed: int) -> None:
    cluster = SimCluster.formed(hosts, seed)
    requests: list[tuple[int, int]] = []
    for number in range(hosts):
        requests.append((number, cluster.leave(number)))
        cluster.run_for(seed * 20_000)
    cluster.run_until(lambda: all(h.stopped for h in cluster.hosts), within_us=10 * SECOND_US)
    for number, request in requests:
        assert [(r.request, r.error) for r in cluster.hosts[number].replies] == [(request, "")]


def test_leave_waits_for_a_round_that_takes_long() -> None:
    cluster = SimCluster.formed(3, seed=3)
    for host in cluster.hosts:
        host.unit_us = 5 * SECOND_US
    cluster.submit(0)
    cluster.run_until(lambda: cluster.job_state(2) == "running", within_us=20 * SECOND_US)
    cluster.leave(2)
    cluster.run_until(lambda: cluster.hosts[2].stopped is not None, within_us=60 * SECOND_US)
    assert errors_of(cluster, 2) == [""]


def test_leader_that_leaves_stays_until_the_others_know_of_it() -> None:
    cluster = SimCluster.formed(3, seed=3)
    cluster.run_for(8 * SECOND_US)
    leader = leader_of(cluster)
    cluster.loses = lambda _host, send: isinstance(send.message, Commit | Entries)
    cluster.leave(leader)
    cluster.run_for(3 * SECOND_US)
    assert cluster.status(leader).state.value == "leaving"
    cluster.loses = lambda _host, _send: False
    cluster.run_until(lambda: cluster.hosts[leader].stopped is not None, within_us=5 * SECOND_US)
    assert cluster.are_members(*(n for n in range(3) if n != leader))


def test_leave_is_given_up_with_the_leaders_name_when_the_leader_is_gone() -> None:
    cluster = SimCluster.formed(3, seed=3)
    cluster.run_for(8 * SECOND_US)
    leader = leader_of(cluster)
    leaver = (leader + 1) % 3
    cluster.crash(leader)
    cluster.leave(leaver)
    cluster.run_until(lambda: errors_of(cluster, leaver) != [], within_us=20 * SECOND_US)
    assert f"the leader (host-{leader}) is not reachable" in errors_of(cluster, leaver)[0]
    assert cluster.hosts[leaver].replies[0].fault is Fault.UNREACHABLE
    assert cluster.status(leaver).state.value == "member"


@pytest.mark.parametrize("wait_ms", range(12))
def test_newcomer_that_leaves_at_once_does_not_stay_as_a_dead_member(wait_ms: int) -> None:
    cluster = SimCluster(3, seed=5)
    cluster.found()
    cluster.join(1)
    cluster.run_until(lambda: cluster.are_members(0, 1), within_us=30 * SECOND_US)
    cluster.join(2)
    cluster.run_until(lambda: cluster.status(2).committed > 0, within_us=5 * SECOND_US)
    cluster.run_for(wait_ms * 1000)
    cluster.leave(2)
    cluster.run_until(lambda: cluster.hosts[2].stopped is not None, within_us=5 * SECOND_US)
    cluster.run_until(lambda: cluster.are_members(0, 1), within_us=5 * SECOND_US)


# -- jobs that do not start -----------------------------------------------------------------------


def test_stop_waits_for_a_round_that_takes_long() -> None:
    cluster = SimCluster.formed(3, seed=3)
    for host in cluster.hosts:
        host.unit_us = 5 * SECOND_US
    job = cluster.submit(0)
    cluster.run_until(lambda: cluster.job_state(2) == "running", within_us=20 * SECOND_US)
    cluster.stop_job(2, job)
    cluster.run_until(lambda: errors_of(cluster, 2) != [], within_us=60 * SECOND_US)
    assert errors_of(cluster, 2) == [""]
    assert cluster.job_state(2) == "stopped"


@pytest.mark.parametrize("stopper", [0, 1, 2])
def test_job_that_is_only_preparing_can_be_stopped(stopper: int) -> None:
    cluster = SimCluster.formed(3, seed=4)
    cluster.hosts[1].load_us = 30 * SECOND_US
    job = cluster.submit(0)
    cluster.run_until(lambda: cluster.job_state(stopper) == "preparing", within_us=5 * SECOND_US)
    cluster.run_for(SECOND_US)
    cluster.stop_job(stopper, job)
    cluster.run_until(lambda: not any(h.workers for h in cluster.hosts), within_us=5 * SECOND_US)
    cluster.run_for(40 * SECOND_US)
    assert f"stopped by a user at host-{stopper}" in errors_of(cluster, 0)
    assert "" in errors_of(cluster, stopper)
    assert all(cluster.status(n).jobs == () for n in range(3))


def test_declined_job_leaves_no_worker_behind_though_the_word_of_it_is_lost() -> None:
    cluster = SimCluster.formed(4, seed=5)
    cluster.hosts[1].refusal = "no data"
    cluster.hosts[1].load_us = SECOND_US
    cluster.loses = Losing(Declined)
    cluster.submit(2)
    cluster.run_until(lambda: errors_of(cluster, 2) != [], within_us=20 * SECOND_US)
    assert errors_of(cluster, 2) == ["host-1 cannot run it: no data"]
    cluster.run_until(
        lambda: (
            all(not h.workers for h in cluster.hosts)
            and all(cluster.status(n).jobs == () for n in range(4))
        ),
        within_us=30 * SECOND_US,
    )


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_job_is_refused_when_a_worker_dies_before_the_start(victim: int) -> None:
    cluster = SimCluster.formed(3, seed=9)
    slow = 1 if victim == 2 else 2
    cluster.hosts[slow].load_us = 10 * SECOND_US
    job = cluster.submit(0)
    cluster.run_until(
        lambda: all(cluster.job_state(n) == "preparing" for n in range(3)), within_us=SECOND_US
    )
    cluster.run_for(100_000)
    cluster.hosts[victim].kill_worker(job, "worker died: signal 9")
    cluster.run_until(lambda: errors_of(cluster, 0) != [], within_us=SECOND_US)
    assert errors_of(cluster, 0) == [f"host-{victim} cannot run it: worker died: signal 9"]
    assert cluster.oracle.rounds == 0


def test_job_fails_by_name_when_a_member_was_not_asked_until_the_start() -> None:
    cluster = SimCluster.formed(3, seed=10)
    cluster.hosts[1].load_us = 20 * SECOND_US
    cluster.submit(0)
    cluster.run_until(lambda: cluster.job_state(2) == "preparing", within_us=SECOND_US)
    cluster.run_for(SECOND_US)
    cluster.loses = lambda _host, send: (
        isinstance(send.message, PrepareJob) and send.to.node == cluster.hosts[2].node_id
    )
    cluster.run_until(
        lambda: all(cluster.job_state(n) == "failed" for n in range(3)), within_us=40 * SECOND_US
    )
    assert "host-2: it was not ready any more" in cluster.status(0).jobs[-1].reason


def test_leaver_does_not_wait_for_ever_for_members_that_are_not_heard_any_more() -> None:
    cluster = SimCluster.formed(3, seed=97)
    cluster.run_for(8 * SECOND_US)
    names = {status.name: number for number, status in enumerate(cluster.statuses())}
    leader = names[cluster.status(0).leader or ""]
    leaver = next(n for n in range(3) if n != leader)
    request = cluster.leave(leaver)
    cluster.run_until(
        lambda: all(len(cluster.status(n).members) == 2 for n in range(3)), within_us=SECOND_US
    )
    for number in set(range(3)) - {leaver}:
        cluster.crash(number)
    cluster.run_until(lambda: cluster.hosts[leaver].stopped is not None, within_us=20 * SECOND_US)
    assert [(r.request, r.error) for r in cluster.hosts[leaver].replies] == [(request, "")]
