"""What a node tells people of itself and of the others."""

from greedw_p2p.ids import JobId
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


def test_earlier_jobs_keep_their_digests_and_a_newcomer_does_not_call_a_job_paused() -> None:
    cluster = SimCluster.formed(3, seed=71)
    cluster.submit(1)
    cluster.run_until(lambda: cluster.job_state(0) == "finished", within_us=60 * SECOND_US)
    cluster.run_for(SECOND_US)
    cluster.crash(2)
    cluster.evict(0, 2)
    cluster.run_until(lambda: cluster.are_members(0, 1), within_us=20 * SECOND_US)
    cluster.submit(0, epochs=500)
    cluster.run_until(lambda: cluster.job_state(0) == "running", within_us=20 * SECOND_US)
    first, second = cluster.status(0).jobs
    assert len(set(first.digests.values())) == 1
    assert {"host-0", "host-1"} <= set(first.digests)
    assert first.digests != second.digests
    cluster.restart(2)
    cluster.run_for(2 * SECOND_US)
    assert cluster.job_state(2) == "running"
    assert f"when job {second.id} has ended" in cluster.status(2).pause


def test_cluster_of_which_every_member_has_restarted_says_so_and_what_to_do() -> None:
    cluster = SimCluster.formed(2, seed=73)
    for number in (0, 1):
        cluster.crash(number)
    for number in (0, 1):
        cluster.restart(number)
    cluster.run_for(5 * SECOND_US)
    for number in (0, 1):
        assert "every member has restarted" in cluster.status(number).pause
        assert "greedw leave on each machine" in cluster.status(number).pause


def test_quorum_shown_is_what_suffices_with_the_senior_member() -> None:
    cluster = SimCluster.formed(4, seed=79)
    assert cluster.status(1).quorum == 2
    senior = next(n for n in range(4) if cluster.status(1).members[0].name == f"host-{n}")
    other = next(n for n in range(4) if n != senior)
    cluster.crash(senior)
    cluster.run_for(SECOND_US)
    assert cluster.status(other).quorum == 3


def test_log_tells_once_that_a_job_started_paused_and_goes_on_and_who_left() -> None:
    cluster = SimCluster.formed(3, seed=83)
    cluster.submit(0, epochs=300)
    cluster.run_until(lambda: cluster.job_state(0) == "running", within_us=20 * SECOND_US)
    cluster.pause(1, for_us=4 * SECOND_US)
    cluster.run_for(8 * SECOND_US)
    cluster.leave(2)
    cluster.run_until(lambda: cluster.are_members(0, 1), within_us=20 * SECOND_US)
    cluster.run_for(SECOND_US)
    told = [note.event for note in cluster.hosts[0].notes]
    for event in ("job started", "job paused", "job goes on", "peer left"):
        assert told.count(event) == 1, told
    assert "host-1 is silent" in next(
        str(note.fields["reason"]) for note in cluster.hosts[0].notes if note.event == "job paused"
    )


def test_survivor_of_a_restarted_senior_says_that_the_cluster_cannot_go_on() -> None:
    cluster = SimCluster.formed(2, seed=89)
    cluster.submit(0, epochs=300)
    cluster.run_until(lambda: cluster.job_state(0) == "running", within_us=20 * SECOND_US)
    senior = next(n for n in range(2) if cluster.status(0).members[0].name == f"host-{n}")
    cluster.crash(senior)
    cluster.run_for(SECOND_US)
    assert cluster.status(1 - senior).recoverable
    cluster.evict(1 - senior, senior)
    assert "does not hear a quorum" in cluster.hosts[1 - senior].replies[-1].error
    cluster.restart(senior)
    cluster.run_for(3 * SECOND_US)
    status = cluster.status(1 - senior)
    assert not status.recoverable
    assert "have restarted and remember nothing" in status.pause
    states = {member.name: member.state for member in status.members}
    assert states[f"host-{senior}"] == "restarted"
    assert "restarted during job" in cluster.status(senior).pause


def test_stop_at_a_node_that_is_no_member_is_refused() -> None:
    cluster = SimCluster.formed(2, seed=91)
    cluster.submit(0, epochs=300)
    cluster.run_until(lambda: cluster.job_state(0) == "running", within_us=20 * SECOND_US)
    leader = next(n for n in range(2) if cluster.status(0).leader == f"host-{n}")
    cluster.crash(1 - leader)
    cluster.restart(1 - leader)
    cluster.run_for(3 * SECOND_US)
    cluster.stop_job(1 - leader, JobId(cluster.status(leader).jobs[-1].id))
    assert "no member yet" in cluster.hosts[1 - leader].replies[-1].error
