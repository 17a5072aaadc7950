"""Whole clusters of real nodes in virtual time; the oracle checks every message and commit."""

import os
import random
import subprocess
import sys

import pytest

from greedw_p2p.ids import JobId
from greedw_p2p.node import events
from greedw_p2p.node.status import NodeState
from greedw_p2p.testing.cluster import SimCluster, member_names
from greedw_p2p.wire.messages import Fault

SECOND_US = 1_000_000


def formed(hosts: int, seed: int) -> SimCluster:
    """Return a cluster of which all hosts are members."""
    cluster = SimCluster(hosts, seed)
    cluster.found()
    cluster.run_for(300_000)
    for number in range(1, hosts):
        cluster.join(number)
    cluster.run_until(lambda: cluster.are_members(*range(hosts)), within_us=30 * SECOND_US)
    return cluster


def training(hosts: int, seed: int, *, epochs: int = 2) -> SimCluster:
    """Return a cluster with a job under way."""
    cluster = formed(hosts, seed)
    cluster.submit(hosts - 1, epochs=epochs)
    cluster.run_until(lambda: cluster.status(0).jobs != (), within_us=20 * SECOND_US)
    cluster.run_until(lambda: cluster.job_state(0) == "running", within_us=20 * SECOND_US)
    return cluster


def finished(cluster: SimCluster, *numbers: int) -> bool:
    return all(cluster.job_state(number) == "finished" for number in numbers)


def random_run(seed: int) -> SimCluster:
    """Train while connections break, hosts pause and members leave; everything must end well."""
    rng = random.Random(seed)  # noqa: S311 - a test is seeded, not secret
    hosts = rng.randint(1, 7)
    cluster = SimCluster(hosts, seed, replay=f"pytest tests/node -k 'random_run and {seed}'")
    cluster.found()
    for number in range(1, hosts):
        cluster.run_for(rng.randrange(400_000))
        cluster.join(number)
    cluster.run_until(lambda: cluster.are_members(*range(hosts)), within_us=30 * SECOND_US)
    cluster.submit(
        rng.randrange(hosts),
        samples=rng.randint(1, 80),
        epochs=rng.randint(1, 3),
        batch=rng.randint(1, 20),
    )
    cluster.run_until(
        lambda: cluster.job_state(0) not in ("", "preparing"), within_us=20 * SECOND_US
    )
    staying = list(range(hosts))
    left: list[int] = []
    for _ in range(rng.randint(0, 12)):
        cluster.run_for(rng.randrange(60_000))
        disturb(cluster, rng, staying, left)
    cluster.run_until(lambda: finished(cluster, *staying), within_us=120 * SECOND_US)
    cluster.run_until(
        lambda: all(cluster.hosts[n].stopped for n in left) and cluster.are_members(*staying),
        within_us=60 * SECOND_US,
    )
    # Paused hosts have not sent the heartbeat of the last round yet.
    cluster.run_for(5 * SECOND_US)
    digests = {d for n in staying for d in cluster.status(n).jobs[-1].digests.values()}
    assert len(digests) == 1, cluster.describe()
    return cluster


def disturb(cluster: SimCluster, rng: random.Random, staying: list[int], left: list[int]) -> None:
    kind = rng.randrange(4)
    if kind == 0 and len(staying) > 1:
        cluster.drop_connection(*rng.sample(staying, 2))
    elif kind == 1 and len(staying) > 1:
        cluster.drop_bulk(*rng.sample(staying, 2))
    elif kind == 2:
        cluster.pause(rng.choice(staying), rng.randrange(3 * SECOND_US))
    elif len(staying) > 1 and rng.random() < 0.3:
        leaver = rng.choice(staying)
        staying.remove(leaver)
        left.append(leaver)
        cluster.leave(leaver)


@pytest.mark.parametrize("seed", range(30))
def test_random_run_trains_every_sample_once_with_equal_replicas(seed: int) -> None:
    cluster = random_run(seed)
    assert cluster.oracle.rounds > 0


@pytest.mark.parametrize("hosts", [1, 2, 3, 5])
def test_cluster_trains_to_the_end_for_any_number_of_nodes(hosts: int) -> None:
    cluster = training(hosts, seed=7)
    cluster.run_until(lambda: finished(cluster, *range(hosts)), within_us=60 * SECOND_US)
    cluster.run_for(SECOND_US)
    job = cluster.status(0).jobs[-1]
    assert job.round == job.rounds == cluster.oracle.rounds == 8
    assert job.accuracy_round == 8
    assert sorted(job.digests) == sorted(host.name for host in cluster.hosts)
    assert len(set(job.digests.values())) == 1


def test_batch_smaller_than_the_number_of_nodes_trains_to_the_end() -> None:
    cluster = formed(5, seed=3)
    cluster.submit(1, samples=7, epochs=1, batch=2)
    cluster.run_until(lambda: finished(cluster, *range(5)), within_us=60 * SECOND_US)
    assert cluster.oracle.rounds == 4


def test_all_links_are_measured_within_seconds_of_forming() -> None:
    cluster = formed(4, seed=5)
    cluster.run_until(
        lambda: (t := cluster.status(2).topology).links_known == t.links_wanted == 12,
        within_us=10 * SECOND_US,
    )


def test_founder_leaves_and_the_others_train_on() -> None:
    cluster = training(4, seed=11, epochs=20)
    cluster.run_for(200_000)
    request = cluster.leave(0)
    cluster.run_until(lambda: cluster.hosts[0].stopped is not None, within_us=20 * SECOND_US)
    assert [(r.request, r.error) for r in cluster.hosts[0].replies] == [(request, "")]
    cluster.run_until(lambda: finished(cluster, 1, 2, 3), within_us=60 * SECOND_US)
    assert sorted(member_names(cluster, 1)) == ["host-1", "host-2", "host-3"]


def test_last_member_leaves_at_once_when_it_is_alone() -> None:
    cluster = formed(1, seed=2)
    cluster.leave(0)
    assert cluster.hosts[0].stopped is not None


def test_all_members_leaving_at_once_all_get_out() -> None:
    cluster = formed(4, seed=13)
    for number in range(4):
        cluster.leave(number)
    cluster.run_until(lambda: all(h.stopped for h in cluster.hosts), within_us=20 * SECOND_US)
    assert not any(h.stopped.failed for h in cluster.hosts if h.stopped)


@pytest.mark.parametrize("victim", range(4))
def test_killed_peer_pauses_the_job_and_everybody_names_it_at_once(victim: int) -> None:
    cluster = training(4, seed=17, epochs=50)
    cluster.run_for(100_000)
    cluster.crash(victim)
    cluster.run_for(50_000)
    for number in set(range(4)) - {victim}:
        job = cluster.status(number).jobs[-1]
        assert job.state == "paused", cluster.describe()
        assert f"host-{victim} is gone" in job.reason
        assert f"link host-{number} - host-{victim}" in job.reason
        assert "phase round" in job.reason


def test_silent_peer_is_noticed_within_five_seconds_and_training_goes_on_when_it_is_back() -> None:
    cluster = training(3, seed=19, epochs=200)
    cluster.pause(1, for_us=8 * SECOND_US)
    cluster.run_for(5 * SECOND_US)
    for number in (0, 2):
        assert "host-1 is silent" in cluster.status(number).jobs[-1].reason
    cluster.run_until(lambda: finished(cluster, 0, 1, 2), within_us=120 * SECOND_US)


def test_two_nodes_without_the_senior_one_freeze() -> None:
    cluster = training(2, seed=23, epochs=50)
    cluster.crash(0)
    cluster.run_for(SECOND_US)
    status = cluster.status(1)
    assert status.state is NodeState.FROZEN
    assert "no quorum: 1 of 2 members reachable" in status.pause


def test_paused_job_can_be_stopped_by_the_members_that_live() -> None:
    cluster = training(4, seed=29, epochs=50)
    names = {status.name: number for number, status in enumerate(cluster.statuses())}
    leader = names[cluster.status(0).leader or ""]
    cluster.crash(next(n for n in range(4) if n != leader))
    cluster.run_for(SECOND_US)
    cluster.stop_job(leader, _job_id(cluster, leader))
    cluster.run_until(lambda: cluster.job_state(leader) == "stopped", within_us=20 * SECOND_US)
    assert "stopped by a user" in cluster.status(leader).jobs[-1].reason


def test_running_job_stops_after_its_round_at_a_users_wish() -> None:
    cluster = training(3, seed=31, epochs=100)
    job = cluster.oracle.rounds
    cluster.stop_job(2, _job_id(cluster, 2))
    cluster.run_until(lambda: cluster.job_state(2) == "stopped", within_us=20 * SECOND_US)
    assert cluster.hosts[2].replies[-1].error == ""
    assert cluster.oracle.rounds >= job


def test_job_fails_with_the_workers_last_words_when_a_worker_dies() -> None:
    cluster = training(4, seed=37, epochs=100)
    cluster.run_for(100_000)
    job = _job_id(cluster, 1)
    cluster.hosts[1].deliver(events.WorkerFailed(job, "worker died: signal 9"))
    cluster.run_until(
        lambda: all(cluster.job_state(n) == "failed" for n in range(4)), within_us=20 * SECOND_US
    )
    assert cluster.status(3).jobs[-1].reason == "host-1: worker died: signal 9"
    cluster.submit(0)
    cluster.run_until(lambda: finished(cluster, *range(4)), within_us=60 * SECOND_US)


@pytest.mark.parametrize("hosts", [1, 2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_job_ends_everywhere_whenever_a_worker_dies(hosts: int, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - a test is seeded, not secret
    cluster = training(hosts, seed=seed, epochs=100)
    cluster.run_for(50_000 + rng.randrange(20_000))
    victim = rng.randrange(hosts)
    cluster.hosts[victim].kill_worker(_job_id(cluster, victim), "worker died: signal 9")
    cluster.run_until(
        lambda: all(cluster.job_state(n) == "failed" for n in range(hosts)),
        within_us=5 * SECOND_US,
    )
    cluster.submit(0)
    cluster.run_until(lambda: finished(cluster, *range(hosts)), within_us=60 * SECOND_US)


def test_job_is_refused_by_name_before_its_first_round_when_a_node_lacks_the_data() -> None:
    cluster = formed(3, seed=41)
    cluster.hosts[1].refusal = "data set /data has hash aa, the job names bb"
    cluster.submit(2)
    cluster.run_until(lambda: cluster.hosts[2].replies != [], within_us=20 * SECOND_US)
    reply = cluster.hosts[2].replies[-1]
    assert "host-1 cannot run it: data set /data has hash aa" in reply.error
    assert reply.fault is Fault.UNFIT
    assert cluster.oracle.rounds == 0


def test_job_is_refused_while_another_runs() -> None:
    cluster = training(3, seed=43, epochs=100)
    cluster.submit(1)
    cluster.run_until(lambda: cluster.hosts[1].replies != [], within_us=20 * SECOND_US)
    assert "is running; stop it first" in cluster.hosts[1].replies[-1].error
    assert cluster.hosts[1].replies[-1].fault is Fault.BUSY


def test_job_is_refused_by_name_while_a_member_is_not_reachable() -> None:
    cluster = formed(3, seed=47)
    leader = cluster.status(0).leader
    victim = next(n for n in (1, 2) if leader not in {cluster.hosts[n].node_id, f"host-{n}"})
    cluster.crash(victim)
    cluster.submit(0)
    cluster.run_until(lambda: cluster.hosts[0].replies != [], within_us=20 * SECOND_US)
    reply = cluster.hosts[0].replies[-1]
    assert f"host-{victim} is not reachable at" in reply.error
    assert reply.fault is Fault.UNREACHABLE


def test_lone_founder_goes_on_after_a_restart_in_a_new_lineage() -> None:
    cluster = formed(1, seed=47)
    before = cluster.status(0).lineage
    cluster.crash(0)
    cluster.restart(0)
    cluster.run_for(SECOND_US)
    status = cluster.status(0)
    assert status.state is NodeState.MEMBER
    assert status.lineage != before
    cluster.submit(0)
    cluster.run_until(lambda: finished(cluster, 0), within_us=30 * SECOND_US)


def test_restarted_member_is_admitted_as_a_new_life_when_no_job_runs() -> None:
    cluster = formed(3, seed=53)
    # Until the links are measured, entries follow one another and the leader may change.
    cluster.run_for(8 * SECOND_US)
    victim = next(n for n in range(3) if cluster.status(n).name != cluster.status(n).leader)
    cluster.crash(victim)
    cluster.run_for(SECOND_US)
    cluster.restart(victim)

    def lives() -> dict[str, int]:
        return {m.name: m.incarnation for m in cluster.status(victim).members}

    cluster.run_until(lambda: lives().get(f"host-{victim}") == 2, within_us=20 * SECOND_US)
    assert cluster.are_members(0, 1, 2)


def test_same_seed_gives_the_same_trace_and_another_seed_another_one() -> None:
    assert random_run(4).trace_digest() == random_run(4).trace_digest()
    assert random_run(4).trace_digest() != random_run(8).trace_digest()


def test_trace_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from test_simulated_cluster import random_run;"
        "print(random_run(12).trace_digest())"
    )
    traces = {
        subprocess.run(
            [sys.executable, "-c", program, os.path.dirname(__file__)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "42")
    }
    assert len(traces) == 1


def _job_id(cluster: SimCluster, number: int) -> JobId:
    return JobId(cluster.status(number).jobs[-1].id)
