"""What several daemons compute together, and that each has the same of it."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pytest

from greedw_daemon.harness import DaemonProcess, LocalCluster

TRAIN_S: Final = 60.0
ENDED: Final = {"finished", "stopped", "failed"}

Form = Callable[..., LocalCluster]
Run = Callable[..., Any]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def alone() -> Iterator[LocalCluster]:
    """Serve the tests with a cluster of one; the last one kills it."""
    with LocalCluster(["alone"]) as cluster:
        cluster.start()
        cluster.form()
        yield cluster


def train(daemon: DaemonProcess, **changes: Any) -> str:
    usual: dict[str, Any] = {
        "kind": "mnist-2nn",
        "data_dir": "",
        "epochs": 1,
        "batch": 500,
        "learning_rate": 0.1,
        "momentum": 0.9,
        "seed": 7,
    }
    return str(daemon.call("train", timeout_s=TRAIN_S, **(usual | changes))["job"])


def job_at(daemon: DaemonProcess, job_id: str) -> dict[str, Any] | None:
    jobs: list[dict[str, Any]] = daemon.call("jobs")["jobs"]
    return next((job for job in jobs if job["id"] == job_id), None)


def watch(
    cluster: LocalCluster, job_id: str, daemons: Iterable[DaemonProcess]
) -> tuple[dict[int, dict[str, str]], dict[int, float], dict[str, Any]]:
    """Look at every daemon until all have ended the job: own digests and losses by round."""
    digests: dict[int, dict[str, str]] = {}
    losses: dict[int, float] = {}
    ended: dict[str, dict[str, Any]] = {}
    daemons = list(daemons)

    def look() -> bool:
        for daemon in daemons:
            job = job_at(daemon, job_id)
            if job is None:
                continue
            if daemon.name in job["digests"] and job["round"] > 0:
                digests.setdefault(job["round"], {})[daemon.name] = job["digests"][daemon.name]
            if job["loss"] is not None:
                losses[job["round"]] = job["loss"]
            if job["state"] in ENDED:
                ended[daemon.name] = job
        return len(ended) == len(daemons)

    cluster.wait_for(look, TRAIN_S, "the job to end everywhere")
    return digests, losses, ended[daemons[0].name]


def test_digests_of_four_replicas_are_equal_after_every_round(four: LocalCluster) -> None:
    job_id = train(four.first, epochs=3, batch=2000)
    digests, _, job = watch(four, job_id, four.daemons.values())
    assert job["state"] == "finished"
    assert (job["round"], job["rounds"]) == (12, 12)
    assert len(digests) >= 4
    for number, replicas in digests.items():
        assert len(set(replicas.values())) == 1, (number, replicas)
    assert set(digests[12]) == {"a", "b", "c", "d"}
    assert len({frozenset(replicas.values()) for replicas in digests.values()}) == len(digests)


def test_one_node_and_four_nodes_give_the_same_losses(
    four: LocalCluster, alone: LocalCluster
) -> None:
    options = {"epochs": 2, "batch": 1000}
    _, losses_of_one, job_of_one = watch(alone, train(alone.first, **options), [alone.first])
    _, losses_of_four, job_of_four = watch(four, train(four.first, **options), [four.first])
    both = sorted(losses_of_one.keys() & losses_of_four.keys() - {0})
    assert both
    assert both[-1] == 16
    for number in both:
        assert losses_of_four[number] == pytest.approx(losses_of_one[number], rel=2e-3), number
    assert job_of_four["accuracy"] == pytest.approx(job_of_one["accuracy"], abs=0.01)
    assert job_of_four["loss"] < 1.0


def test_batch_smaller_than_the_number_of_nodes_trains_until_it_is_stopped(
    four: LocalCluster, greedw: Run
) -> None:
    job_id = train(four.first, batch=3)
    four.wait_for(
        lambda: (job_at(four.first, job_id) or {}).get("round", 0) >= 20, TRAIN_S, "20 rounds"
    )
    stopped = greedw("stop", job_id, "--state-dir", four.daemons["c"].state_dir)
    assert stopped.code == 0, stopped
    digests, _, job = watch(four, job_id, four.daemons.values())
    assert job["state"] == "stopped"
    last = digests[job["round"]]
    assert set(last) == {"a", "b", "c", "d"}
    assert len(set(last.values())) == 1


def test_train_follows_to_the_end_and_answers_with_one_object(
    four: LocalCluster, greedw: Run
) -> None:
    answer = greedw(
        "--state-dir", four.daemons["b"].state_dir, "train", "mnist-2nn", "--epochs", 1, "--json"
    )
    job = answer.json()["job"]
    assert job["state"] == "finished"
    assert job["accuracy"] > 0.8
    assert "round 32 of 32" in answer.err
    listed = greedw("jobs", "--json", "--state-dir", four.first.state_dir).json()
    assert listed["schema"] == 1
    assert listed["jobs"][-1]["id"] == job["id"]
    needed = {"id", "kind", "state", "round", "loss", "accuracy", "digests"}
    assert needed <= listed["jobs"][-1].keys()
    assert set(listed["jobs"][-1]["digests"]) == {"a", "b", "c", "d"}


def test_train_says_for_people_how_it_ended(four: LocalCluster, greedw: Run) -> None:
    answer = greedw(
        "train", "mnist-2nn", "--epochs", 1, "--batch", 1000, "--state-dir", four.first.state_dir
    )
    assert answer.code == 0, answer
    assert "2,000 held-out digits (not the official test set), 8 rounds" in answer.out
    table = greedw("jobs", "--state-dir", four.first.state_dir).out
    assert " 8/8 " in table
    assert "finished" in table


def test_ctrl_c_ends_only_the_following_and_the_job_goes_on(
    four: LocalCluster, greedw: Run, start_greedw: Start
) -> None:
    following = start_greedw(
        "train", "mnist-2nn", "--epochs", 50, "--state-dir", four.first.state_dir
    )
    job = four.wait_for(lambda: running_job(four.first), TRAIN_S, "the job to run")
    assert following.stdout is not None
    assert following.stdout.readline().startswith("round ")
    following.send_signal(signal.SIGINT)
    _, err = following.communicate(timeout=10)
    assert following.returncode == 130
    assert f"greedw stop {job['id']}" in err
    assert "Traceback" not in err
    later = four.wait_for(
        lambda: beyond(running_job(four.first), job["round"]), 10, "another round"
    )
    assert later["id"] == job["id"]
    assert greedw("stop", job["id"], "--state-dir", four.first.state_dir).code == 0


def running_job(daemon: DaemonProcess) -> dict[str, Any] | None:
    job = daemon.newest_job()
    return job if job is not None and job["state"] == "running" else None


def beyond(job: dict[str, Any] | None, round_number: int) -> dict[str, Any] | None:
    return job if job is not None and job["round"] > round_number else None


def test_status_and_topology_show_the_running_cluster(four: LocalCluster, greedw: Run) -> None:
    detached = greedw(
        "train", "mnist-2nn", "--epochs", 50, "--detach", "--state-dir", four.first.state_dir
    )
    assert detached.code == 0, detached
    job_id = detached.out.strip()
    four.wait_for(lambda: beyond(running_job(four.first), 10), TRAIN_S, "ten rounds")
    status = greedw("status", "--json", "--state-dir", four.daemons["d"].state_dir).json()
    assert status["schema"] == 1
    assert status["name"] == "d"
    assert {member["name"] for member in status["members"]} == {"a", "b", "c", "d"}
    assert all({"id", "address", "state"} <= member.keys() for member in status["members"])
    assert status["jobs"][-1]["id"] == job_id
    text = greedw("status", "--check", "--state-dir", four.first.state_dir)
    assert text.code == 0
    assert re.match(r"healthy     4 of 4 members, quorum 2 with [a-d], round ", text.out)
    assert "(leads)" in text.out
    tree = greedw("topology", "--json", "--state-dir", four.first.state_dir).json()
    assert tree["schema"] == 1
    assert tree["root"] in {"a", "b", "c", "d"}
    assert sum(tree["shares"].values()) == 256
    below = {edge["node"] for edge in tree["edges"]} - {tree["root"]}
    assert len(below) == 3
    drawn = greedw("topology", "--state-dir", four.first.state_dir).out
    assert "─" in drawn
    assert "links measured" in drawn
    assert greedw("stop", job_id, "--state-dir", four.first.state_dir).code == 0


def test_two_nodes_train_and_evaluate(form: Form) -> None:
    cluster = form("a", "b")
    digests, losses, job = watch(cluster, train(cluster.first), cluster.daemons.values())
    assert job["state"] == "finished"
    assert job["accuracy"] > 0.7
    assert losses[16] < 1.5
    assert len(digests[16]) == 2
    assert len(set(digests[16].values())) == 1


def test_founder_leaves_during_a_job_and_the_others_finish_and_train_again(
    form: Form, greedw: Run
) -> None:
    cluster = form("a", "b", "c")
    job_id = train(cluster.first, epochs=8, batch=500)
    cluster.wait_for(lambda: beyond(running_job(cluster.first), 5), TRAIN_S, "five rounds")
    left = greedw("leave", "--state-dir", cluster.first.state_dir)
    assert left.code == 0, left
    assert cluster.first.status()["state"] == "unprepared"
    cluster.wait_for_members(["b", "c"])
    rest = [cluster.daemons["b"], cluster.daemons["c"]]
    digests, _, job = watch(cluster, job_id, rest)
    assert job["state"] == "finished"
    assert len(set(digests[job["round"]].values())) == 1
    _, _, again = watch(cluster, train(cluster.daemons["c"]), rest)
    assert again["state"] == "finished"
    assert job["id"] != again["id"]


def test_jobs_json_is_one_object_and_nothing_else(four: LocalCluster, greedw: Run) -> None:
    answer = greedw("jobs", "--json", "--state-dir", four.first.state_dir)
    assert answer.err == ""
    decoder = json.JSONDecoder()
    _, end = decoder.raw_decode(answer.out)
    assert answer.out[end:] == "\n"


def test_following_fails_when_the_daemon_goes_away(
    alone: LocalCluster, start_greedw: Start
) -> None:
    following = start_greedw(
        "train", "mnist-2nn", "--epochs", 1000, "--state-dir", alone.first.state_dir
    )
    alone.wait_for(lambda: running_job(alone.first), TRAIN_S, "the job to run")
    begin_s = time.monotonic()
    alone.first.signal(signal.SIGKILL)
    _, err = following.communicate(timeout=15)
    assert following.returncode == 3, err
    assert "error: " in err
    assert time.monotonic() - begin_s < 10


def test_following_ends_at_once_when_this_machine_leaves(
    form: Form, greedw: Run, start_greedw: Start
) -> None:
    cluster = form("a", "b", "c")
    job_id = train(cluster.first, epochs=1000)
    leaver = cluster.daemons["c"]
    cluster.wait_for(lambda: beyond(running_job(leaver), 5), TRAIN_S, "some rounds")
    following = start_greedw("jobs", "--follow", job_id[:-2], "--state-dir", leaver.state_dir)
    assert following.stdout is not None
    assert following.stdout.readline().startswith("round ")
    assert greedw("leave", "--state-dir", leaver.state_dir).code == 0
    _, err = following.communicate(timeout=5)
    assert following.returncode == 1
    assert "this machine has left the cluster; the job goes on without it" in err
    stopped = greedw("stop", "--state-dir", cluster.first.state_dir)
    assert (stopped.code, stopped.out) == (0, f"The job {job_id} is stopped.\n")
