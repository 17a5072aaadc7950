"""What a node tells people of itself and of the others."""

from greedw_p2p.testing.cluster import SimCluster

SECOND_US = 1_000_000


def test_members_with_the_same_name_are_told_apart_everywhere() -> None:
    cluster = SimCluster(3, seed=61)
    for host in cluster.hosts:
        host.name = "raspberrypi"
    cluster.found()
    for number in (1, 2):
        cluster.join(number)
    cluster.run_until(lambda: len(cluster.status(0).members) == 3, within_us=20 * SECOND_US)
    cluster.submit(0)
    cluster.run_until(lambda: cluster.job_state(0) == "finished", within_us=60 * SECOND_US)
    cluster.run_for(SECOND_US)
    status = cluster.status(1)
    names = {member.name for member in status.members}
    assert len(names) == 3
    assert all(name.startswith("raspberrypi-") for name in names)
    assert status.name in names
    assert status.leader in names
    assert set(status.jobs[-1].digests) == set(status.topology.shares) == names


def test_final_digests_stay_complete_while_later_entries_are_made() -> None:
    cluster = SimCluster(3, seed=67)
    cluster.found()
    for number in (1, 2):
        cluster.join(number)
    cluster.run_until(lambda: cluster.are_members(0, 1, 2), within_us=20 * SECOND_US)
    cluster.submit(1)
    cluster.run_until(lambda: cluster.job_state(0) == "finished", within_us=60 * SECOND_US)
    cluster.run_for(SECOND_US)
    cluster.leave(2)
    gone: list[int] = []

    def look() -> bool:
        digests = cluster.status(0).jobs[-1].digests
        assert {"host-0", "host-1"} <= set(digests)
        gone.append(len(digests))
        return cluster.hosts[2].stopped is not None

    cluster.run_until(look, within_us=20 * SECOND_US)
    assert gone[0] == 3
