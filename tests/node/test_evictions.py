"""An operator removes members that are gone: training goes on without them."""

import random

import pytest

from greedw_p2p.testing.cluster import SimCluster

SECOND_US = 1_000_000


def training(hosts: int, seed: int) -> SimCluster:
    cluster = SimCluster.formed(hosts, seed)
    cluster.submit(seed % hosts, samples=96, epochs=4, batch=12)
    cluster.run_until(
        lambda: all(cluster.job_state(n) == "running" for n in range(hosts)),
        within_us=30 * SECOND_US,
    )
    return cluster


def finished(cluster: SimCluster, numbers: list[int]) -> bool:
    return all(cluster.job_state(number) == "finished" for number in numbers)


@pytest.mark.parametrize("seed", range(24))
def test_training_goes_on_without_members_that_died_at_any_moment_once_evicted(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - a test is seeded, not secret
    hosts = rng.randint(3, 7)
    cluster = training(hosts, seed)
    living = list(range(hosts))
    for _ in range(rng.randint(1, (hosts - 1) // 2)):
        cluster.run_for(rng.randrange(120_000))
        victim = rng.choice(living)
        living.remove(victim)
        cluster.crash(victim)
        cluster.run_for(rng.randrange(2 * SECOND_US))
        asked = rng.choice(living)
        request = cluster.evict(asked, victim)
        cluster.run_until(
            lambda: any(r.request == request for r in cluster.hosts[asked].replies),  # noqa: B023
            within_us=40 * SECOND_US,
        )
        errors = [r.error for r in cluster.hosts[asked].replies if r.request == request]
        assert errors == [""], cluster.describe()
    cluster.run_until(lambda: finished(cluster, living), within_us=120 * SECOND_US)
    cluster.run_for(SECOND_US)
    assert cluster.are_members(*living)
    assert len(set(cluster.status(living[0]).jobs[-1].digests.values())) == 1
    assert cluster.oracle.rounds == cluster.status(living[0]).jobs[-1].rounds


def test_member_that_is_alive_is_not_evicted() -> None:
    cluster = SimCluster.formed(3, seed=3)
    cluster.evict(0, 1)
    assert "is alive and heard; run greedw leave there" in cluster.hosts[0].replies[-1].error


def test_stranger_is_not_evicted_and_the_members_are_named() -> None:
    cluster = SimCluster.formed(2, seed=3)
    cluster.hosts[1].name = "nobody"
    cluster.evict(0, 1)
    error = cluster.hosts[0].replies[-1].error
    assert error.startswith("no member is called nobody; the members are")
    assert "host-1" in error


def test_node_does_not_evict_itself() -> None:
    cluster = SimCluster.formed(2, seed=5)
    cluster.evict(0, 0)
    assert "greedw leave" in cluster.hosts[0].replies[-1].error


def test_minority_evicts_nobody() -> None:
    cluster = SimCluster.formed(4, seed=7)
    senior = next(n for n in range(4) if cluster.status(0).members[0].name == f"host-{n}")
    victims = [n for n in range(4) if n != senior][:2]
    cluster.crash(senior)
    cluster.crash(victims[0])
    cluster.run_for(SECOND_US)
    asked = next(n for n in range(4) if cluster.hosts[n].is_up)
    cluster.evict(asked, senior)
    cluster.run_until(lambda: cluster.hosts[asked].replies != [], within_us=30 * SECOND_US)
    assert "does not hear a quorum" in cluster.hosts[asked].replies[-1].error
    assert len(cluster.status(asked).members) == 4


def test_evicted_machine_comes_back_as_a_newcomer_when_no_job_runs() -> None:
    cluster = SimCluster.formed(3, seed=11)
    cluster.run_for(8 * SECOND_US)
    cluster.crash(0)
    cluster.run_for(SECOND_US)
    cluster.evict(1, 0)
    cluster.run_until(lambda: cluster.are_members(1, 2), within_us=20 * SECOND_US)
    cluster.restart(0)
    cluster.run_until(lambda: cluster.are_members(0, 1, 2), within_us=20 * SECOND_US)


@pytest.mark.parametrize("seed", [13, 16, 21, 30])
def test_newcomer_that_left_while_its_admission_was_decided_is_removed_unasked(seed: int) -> None:
    cluster = SimCluster(4, seed)
    cluster.found()
    for number in (1, 2):
        cluster.join(number)
    cluster.run_until(lambda: cluster.are_members(0, 1, 2), within_us=20 * SECOND_US)
    cluster.run_for(8 * SECOND_US)
    names = {status.name: number for number, status in enumerate(cluster.statuses())}
    leader = names[cluster.status(0).leader or ""]
    for number in {0, 1, 2} - {leader}:
        cluster.pause(number, for_us=2 * SECOND_US)
    cluster.join(3)
    cluster.run_for(750_000)
    # Its admission waits for the paused ones; it is no member yet, and so may go at once.
    cluster.leave(3)
    cluster.run_until(lambda: cluster.hosts[3].stopped is not None, within_us=10 * SECOND_US)
    cluster.run_until(lambda: cluster.are_members(0, 1, 2), within_us=10 * SECOND_US)
