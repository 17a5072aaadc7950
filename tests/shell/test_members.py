"""Who belongs to a cluster: init, invite, join, leave, with and without a running daemon."""

import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from greedw_daemon.harness import LocalCluster, alive_members
from greedw_p2p.config import Address
from greedw_p2p.invitation import Invitation, format_token

Form = Callable[..., LocalCluster]
Prepare = Callable[..., LocalCluster]
Run = Callable[..., Any]

NOBODY = Invitation(b"c" * 8, b"i" * 8, b"s" * 16, (Address("127.0.0.1", 9),))
"""Well formed, but nobody made it."""


def invite(cluster: LocalCluster, greedw: Run) -> str:
    answer = greedw("invite", "--state-dir", cluster.first.state_dir)
    assert answer.code == 0, answer
    return str(answer.out.splitlines()[-1])


def test_daemon_on_an_unprepared_directory_waits_for_init_and_join(
    prepare: Prepare, greedw: Run
) -> None:
    cluster = prepare("a", "b")
    cluster.start()
    first, second = cluster.daemons.values()
    assert first.status()["state"] == "unprepared"
    status = greedw("status", "--state-dir", first.state_dir)
    assert status.code == 0
    assert "unprepared" in status.out
    assert greedw("init", "--name", "lab", "--state-dir", first.state_dir).code == 0
    token = invite(cluster, greedw)
    joined = greedw("join", "--token-file", "-", "--state-dir", second.state_dir, given=token)
    assert joined.code == 0, joined
    cluster.wait_for_members(["a", "b"])


def test_init_and_join_prepare_a_directory_before_its_daemon_starts(
    prepare: Prepare, greedw: Run
) -> None:
    cluster = prepare("a", "b")
    cluster.directory.mkdir(mode=0o700)
    first, second = cluster.daemons.values()
    prepared = greedw("init", "--name", "lab", "--state-dir", first.state_dir)
    assert prepared.code == 0, prepared
    assert f"greedwd --state-dir {first.state_dir}" in prepared.out
    cluster.start("a")
    cluster.wait_for_members(["a"])
    joined = greedw("join", invite(cluster, greedw), "--state-dir", second.state_dir)
    assert joined.code == 0, joined
    cluster.start("b")
    cluster.wait_for_members(["a", "b"])


def test_invite_prints_the_token_alone_on_the_last_line(pair: LocalCluster, greedw: Run) -> None:
    answer = greedw("invite", "--ttl", "15m", "--uses", 3, "--state-dir", pair.first.state_dir)
    assert answer.out.startswith("gw1-")
    assert len(answer.out.split()) == 1
    as_json = greedw("invite", "--json", "--state-dir", pair.first.state_dir).json()
    assert as_json["schema"] == 1
    assert as_json["token"].startswith("gw1-")


def test_join_names_the_typo_in_a_token(greedw: Run, tmp_path: Path) -> None:
    token = format_token(NOBODY)
    wrong = token[:-1] + ("q" if token[-1] != "q" else "p")
    answer = greedw("join", wrong, "--state-dir", tmp_path)
    assert answer.code == 5, answer
    assert "typ" in answer.err
    assert "Traceback" not in answer.err


def test_join_names_the_other_version_of_a_token(greedw: Run, tmp_path: Path) -> None:
    answer = greedw("join", "gw2" + format_token(NOBODY)[3:], "--state-dir", tmp_path)
    assert answer.code == 6, answer
    assert "version" in answer.err
    assert "Traceback" not in answer.err


def test_join_names_the_address_that_does_not_answer(greedw: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    unreachable = replace(NOBODY, addresses=(Address("127.0.0.1", port),))
    answer = greedw("join", format_token(unreachable), "--state-dir", tmp_path)
    assert answer.code == 4, answer
    assert f"127.0.0.1:{port}" in answer.err
    assert "Traceback" not in answer.err


def test_token_for_one_use_is_refused_the_second_time(pair: LocalCluster, greedw: Run) -> None:
    token = invite(pair, greedw)
    for name, code in (("first", 0), ("second", 5)):
        answer = greedw("join", token, "--state-dir", pair.directory / name)
        assert answer.code == code, answer


def test_second_join_of_a_member_is_refused_and_changes_nothing(
    pair: LocalCluster, greedw: Run
) -> None:
    again = greedw("join", invite(pair, greedw), "--state-dir", pair.daemons["b"].state_dir)
    assert again.code != 0
    assert "already" in again.err
    founded = greedw("init", "--state-dir", pair.daemons["b"].state_dir)
    assert founded.code != 0
    assert "already" in founded.err
    assert alive_members(pair.first.status()) == ["a", "b"]


def test_prepared_directory_is_refused_without_a_daemon_too(greedw: Run, tmp_path: Path) -> None:
    assert greedw("init", "--state-dir", tmp_path / "node").code == 0
    again = greedw("init", "--state-dir", tmp_path / "node")
    assert again.code != 0
    assert "already" in again.err
    assert str(tmp_path / "node") in again.err


@pytest.mark.parametrize("command", [["init"], ["join"]], ids=["init", "join"])
def test_file_in_place_of_the_state_directory_is_named(
    command: list[str], greedw: Run, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.touch()
    arguments = command if command == ["init"] else [*command, format_token(NOBODY)]
    answer = greedw(*arguments, "--state-dir", path)
    assert answer.code not in {0, 3}
    assert str(path) in answer.err
    assert "Traceback" not in answer.err


def test_daemon_names_the_busy_port_and_ends_with_1(prepare: Prepare) -> None:
    cluster = prepare("a")
    cluster.directory.mkdir(mode=0o700)
    with socket.create_server(("127.0.0.1", 0)) as busy:
        cluster.first.listen = f"127.0.0.1:{busy.getsockname()[1]}"
        cluster.first.start()
        assert cluster.first.wait(20) == 1
    assert cluster.first.listen in cluster.first.log()
    assert "Traceback" not in cluster.first.log()


def test_daemon_refuses_a_file_in_place_of_its_directory(prepare: Prepare) -> None:
    cluster = prepare("a")
    cluster.directory.mkdir(mode=0o700)
    cluster.first.state_dir.touch()
    cluster.first.start()
    assert cluster.first.wait(20) == 78
    assert str(cluster.first.state_dir) in cluster.first.log()
    assert "Traceback" not in cluster.first.log()


def test_daemon_refuses_other_than_loopback_without_insecure(prepare: Prepare) -> None:
    cluster = prepare("a")
    cluster.directory.mkdir(mode=0o700)
    cluster.first.listen = "0.0.0.0:0"
    cluster.first.start()
    assert cluster.first.wait(20) == 78
    assert "--insecure" in cluster.first.log()


def test_second_daemon_on_one_directory_is_refused_and_the_first_goes_on(
    pair: LocalCluster, prepare: Prepare
) -> None:
    other = prepare("c")
    other.directory.mkdir(mode=0o700)
    other.first.state_dir = pair.first.state_dir
    other.first.start()
    assert other.first.wait(20) not in {None, 0}
    assert str(pair.first.state_dir) in other.first.log()
    assert alive_members(pair.first.status()) == ["a", "b"]


def test_signal_makes_a_daemon_leave_cleanly(form: Form) -> None:
    cluster = form("a", "b", "c")
    staying = ["a", "b", "c"]
    for name, number in (("b", signal.SIGTERM), ("a", signal.SIGINT)):
        leaver = cluster.daemons[name]
        leaver.signal(number)
        assert leaver.wait(10) == 0
        staying.remove(name)
        cluster.wait_for_members(staying)
        assert "Traceback" not in leaver.log()
        assert not (leaver.state_dir / "control.sock").exists()


def test_join_says_that_a_newcomer_waits_for_the_job_and_later_that_it_is_a_member(
    prepare: Prepare, greedw: Run
) -> None:
    cluster = prepare("a", "b", "c")
    cluster.start()
    first, second, third = cluster.daemons.values()
    first.call("init", name="lab")
    joined = greedw("join", invite(cluster, greedw), "--state-dir", second.state_dir)
    assert joined.out.startswith('This machine is now a member of "lab" (2 members).\n'), joined
    trained = greedw(
        "train", "mnist-2nn", "--epochs", 1000, "--detach", "--state-dir", first.state_dir
    )
    job = trained.out.strip()
    waits_for = f"when job {job} has ended"
    joined = greedw("join", invite(cluster, greedw), "--state-dir", third.state_dir)
    assert joined.code == 0, joined
    assert f'accepted by "lab"; it becomes a member {waits_for}.' in joined.out
    status = greedw("status", "--state-dir", third.state_dir).out
    assert status.startswith("joining ")
    assert waits_for in status
    assert "greedw train" not in status
    assert greedw("stop", "--state-dir", first.state_dir).code == 0
    cluster.wait_for_members(["a", "b", "c"])


def test_last_member_that_leaves_is_told_that_the_cluster_has_ended(
    form: Form, greedw: Run
) -> None:
    cluster = form("a", "b")
    told = [
        greedw("leave", "--state-dir", daemon.state_dir).out.splitlines()[0]
        for daemon in cluster.daemons.values()
    ]
    assert told == [
        "This machine left the cluster; the others go on.",
        "This machine was the last member: the cluster has ended.",
    ]
