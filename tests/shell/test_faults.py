"""What happens when a worker, a link or a machine fails: noticed, named, and nothing hangs."""

import os
import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from greedw_daemon.harness import DaemonProcess, LocalCluster
from greedw_p2p.errors import DaemonError

TRAIN_S: Final = 60.0
NOTICE_S: Final = 5.0
FAULT: Final = "GREEDW_TEST_WORKER_FAULT"

Form = Callable[..., LocalCluster]
Run = Callable[..., Any]


def train(daemon: DaemonProcess, data_dir: str = "", epochs: int = 1000) -> str:
    answer = daemon.call(
        "train",
        timeout_s=TRAIN_S,
        kind="mnist-2nn",
        data_dir=data_dir,
        epochs=epochs,
        batch=256,
        learning_rate=0.1,
        momentum=0.9,
        seed=7,
    )
    return str(answer["job"])


def running(cluster: LocalCluster, rounds: int = 10) -> None:
    cluster.wait_for(
        lambda: (cluster.first.newest_job() or {}).get("round", 0) >= rounds,
        TRAIN_S,
        f"{rounds} rounds",
    )


def in_state(daemon: DaemonProcess, state: str) -> dict[str, Any] | None:
    job = daemon.newest_job()
    return job if job is not None and job["state"] == state else None


@pytest.mark.parametrize(("fault", "names"), [("raise:5", "abc"), ("exit:5", "ab")])
def test_worker_that_fails_ends_the_job_with_its_reason_and_not_the_cluster(
    fault: str, names: str, form: Form, greedw: Run
) -> None:
    cluster = form(*names, b={FAULT: fault})
    answer = greedw("train", "mnist-2nn", "--state-dir", cluster.first.state_dir)
    assert answer.code == 1, answer
    assert "b" in re.findall(r"\w+", answer.err)
    assert f"{FAULT} asked for" in answer.err
    for daemon in cluster.daemons.values():
        job = cluster.wait_for(partial(in_state, daemon, "failed"), 10, "the job's end")
        assert FAULT in job["reason"]
    cluster.wait_for_members(names)


def test_killed_worker_is_named_and_the_same_cluster_trains_again(form: Form) -> None:
    cluster = form("a", "b")
    train(cluster.first)
    running(cluster)
    (worker,) = cluster.daemons["b"].children()
    os.kill(worker, signal.SIGKILL)
    for daemon in cluster.daemons.values():
        job = cluster.wait_for(partial(in_state, daemon, "failed"), 10, "the job's end")
        assert "b" in re.findall(r"\w+", job["reason"])
        assert "SIGKILL" in job["reason"]
    train(cluster.first, epochs=1)
    for daemon in cluster.daemons.values():
        cluster.wait_for(partial(in_state, daemon, "finished"), TRAIN_S, "the second job")


def test_heartbeats_go_on_while_a_worker_holds_its_interpreter(form: Form) -> None:
    cluster = form("a", "b", b={FAULT: "hang:3"})
    train(cluster.first, epochs=1)
    end_s = time.monotonic() + 3
    while time.monotonic() < end_s:
        states = {m["name"]: m["state"] for m in cluster.first.status()["members"]}
        assert states == {"a": "alive", "b": "alive"}
        time.sleep(0.2)
    cluster.wait_for(lambda: in_state(cluster.first, "finished"), TRAIN_S, "the job's end")


def test_data_set_that_differs_on_a_node_is_refused_by_name_and_hash(
    form: Form,
    prepare: Callable[..., LocalCluster],
    write_digits: Callable[[Path, int], Path],
    tmp_path: Path,
) -> None:
    cluster = prepare("a", "b")
    homes = {"a": tmp_path / "a", "b": tmp_path / "b"}
    for name, home in homes.items():
        home.mkdir()
        cluster.daemons[name].working_directory = home
    # The same path on both nodes leads to each one's own folder.
    path = "/proc/self/cwd/digits"
    write_digits(homes["a"] / "digits", 0)
    cluster.start()
    cluster.form()
    with pytest.raises(DaemonError) as missing:
        train(cluster.first, path)
    assert "b" in re.findall(r"\w+", str(missing.value))
    assert path in str(missing.value)
    write_digits(homes["b"] / "digits", 1)
    with pytest.raises(DaemonError) as different:
        train(cluster.first, path)
    assert "b" in re.findall(r"\w+", str(different.value))
    assert len(set(re.findall(r"[0-9a-f]{32}", str(different.value)))) == 2
    for daemon in cluster.daemons.values():
        job = daemon.newest_job()
        assert job is None or (job["state"], job["round"]) == ("failed", 0)


def notices(cluster: LocalCluster, name: str, *, since_s: float) -> None:
    """Check that all others pause within the time, and say whom and where it hurts."""
    for daemon in cluster.daemons.values():
        if daemon.name == name:
            continue
        left_s = max(0.1, since_s + NOTICE_S - time.monotonic())
        cluster.wait_for(
            partial(in_state, daemon, "paused"), left_s, f"{daemon.name} to pause the job"
        )
        status = daemon.status()
        assert {m["name"]: m["state"] for m in status["members"]}[name] != "alive"
        assert name in re.findall(r"\w+", status["pause"]), status["pause"]


def test_killed_peer_is_noticed_by_all_within_five_seconds(form: Form, greedw: Run) -> None:
    cluster = form("a", "b", "c")
    train(cluster.first)
    running(cluster)
    cluster.daemons["c"].signal(signal.SIGKILL)
    notices(cluster, "c", since_s=time.monotonic())
    for name in ("a", "b"):
        text = greedw("status", "--check", "--state-dir", cluster.daemons[name].state_dir)
        assert text.code == 7
        assert text.out.startswith("paused ")
        assert "c at 127.0.0.1:" in text.out
        assert re.search(r"warning.*\bc\b", cluster.daemons[name].log())
    round_before = (cluster.first.newest_job() or {})["round"]
    digests = [
        (d.newest_job() or {})["digests"][d.name] for d in list(cluster.daemons.values())[:2]
    ]
    time.sleep(0.5)
    assert (cluster.first.newest_job() or {})["round"] == round_before
    assert len(set(digests)) == 1


def test_silent_peer_is_noticed_within_five_seconds_and_the_job_goes_on_with_it(
    form: Form,
) -> None:
    cluster = form("a", "b", "c")
    train(cluster.first)
    running(cluster)
    silent = cluster.daemons["b"]
    silent.signal(signal.SIGSTOP)
    notices(cluster, "b", since_s=time.monotonic())
    round_before = (cluster.first.newest_job() or {})["round"]
    silent.signal(signal.SIGCONT)
    cluster.wait_for_members(["a", "b", "c"])
    running(cluster, round_before + 10)


def test_member_that_is_gone_for_good_is_evicted_and_the_job_goes_on(
    form: Form, greedw: Run
) -> None:
    cluster = form("a", "b", "c")
    at_first = ("--state-dir", cluster.first.state_dir)
    job = train(cluster.first)
    running(cluster)
    alive = greedw("evict", "c", *at_first)
    assert alive.code != 0
    assert "c is alive" in alive.err
    assert "greedw leave" in alive.err
    cluster.daemons["c"].signal(signal.SIGKILL)
    paused = cluster.wait_for(partial(in_state, cluster.first, "paused"), NOTICE_S, "the pause")
    assert "remove it: greedw evict c" in greedw("status", *at_first).out
    evicted = greedw("evict", "c", *at_first)
    assert evicted.code == 0, evicted
    running(cluster, paused["round"] + 10)
    cluster.wait_for_members(["a", "b"])
    stopped = greedw("stop", *at_first)
    assert stopped.out == f"The job {job} is stopped.\n"
