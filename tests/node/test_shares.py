"""Shares of a simulated cluster follow the speed of its hosts, as agreed in the log."""

import pytest

from greedw_p2p.testing.cluster import SimCluster
from greedw_p2p.testing.host import FIXED_US

SECOND_US = 1_000_000
BATCH = 256


def training(hosts: int, seed: int) -> SimCluster:
    """Return a cluster of equal hosts with a job under way."""
    cluster = SimCluster(hosts, seed)
    cluster.found()
    cluster.run_for(300_000)
    for number in range(1, hosts):
        cluster.join(number)
    cluster.run_until(lambda: cluster.are_members(*range(hosts)), within_us=30 * SECOND_US)
    cluster.submit(0, samples=40 * BATCH, epochs=2, batch=BATCH)
    cluster.run_until(lambda: round_of(cluster) >= 3, within_us=20 * SECOND_US)
    return cluster


def round_of(cluster: SimCluster) -> int:
    jobs = cluster.status(0).jobs
    return jobs[-1].round if jobs else 0


def shares_at(cluster: SimCluster, round_number: int) -> list[int]:
    """Return the share of each host in a round that is still to come."""
    cluster.run_until(lambda: round_of(cluster) >= round_number, within_us=20 * SECOND_US)
    assert round_of(cluster) == round_number
    shares = {member.name: member.share for member in cluster.status(0).members}
    return [shares[host.name] for host in cluster.hosts]


def finish_us(cluster: SimCluster, shares: list[int]) -> list[int]:
    return [
        FIXED_US + share * host.unit_us for share, host in zip(shares, cluster.hosts, strict=True)
    ]


def test_shares_of_equal_hosts_are_equal() -> None:
    cluster = training(4, seed=5)
    assert [shares_at(cluster, number) for number in (3, 10, 40)] == [[64] * 4] * 3


@pytest.mark.parametrize("victim", range(4))
def test_shares_are_right_three_rounds_after_a_host_became_four_times_slower(victim: int) -> None:
    cluster = training(4, seed=7)
    began = round_of(cluster)
    cluster.hosts[victim].unit_us *= 4
    # The round under way may have been computed before, so the first slow one is the next.
    shares = shares_at(cluster, began + 4)
    ends = finish_us(cluster, shares)
    assert sum(shares) == BATCH
    assert max(ends) - min(ends) <= cluster.hosts[victim].unit_us
    assert shares_at(cluster, began + 12) == shares


def test_a_host_that_is_fast_again_has_its_share_back_three_rounds_later() -> None:
    cluster = training(3, seed=9)
    cluster.hosts[1].unit_us *= 4
    assert shares_at(cluster, round_of(cluster) + 6)[1] < BATCH // 8
    cluster.hosts[1].unit_us //= 4
    shares = shares_at(cluster, round_of(cluster) + 4)
    assert max(shares) - min(shares) <= 1


def test_hosts_of_unequal_speed_finish_together_from_the_second_round_on() -> None:
    cluster = SimCluster(3, 11)
    cluster.found()
    cluster.run_for(300_000)
    for number, unit_us in ((0, 20), (1, 80), (2, 30)):
        cluster.hosts[number].unit_us = unit_us
        if number:
            cluster.join(number)
    cluster.run_until(lambda: cluster.are_members(0, 1, 2), within_us=30 * SECOND_US)
    cluster.submit(0, samples=40 * BATCH, epochs=1, batch=BATCH)
    ends = finish_us(cluster, shares_at(cluster, 1))
    assert max(ends) - min(ends) <= 80
