"""Who belongs to a cluster: init, invite, join, leave, with and without a running daemon."""

import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from greedw_daemon.harness import LocalCluster, alive_members

Form = Callable[..., LocalCluster]
Prepare = Callable[..., LocalCluster]
Run = Callable[..., Any]


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


def test_invite_prints_the_token_alone_on_the_last_line(form: Form, greedw: Run) -> None:
    cluster = form("a")
    answer = greedw("invite", "--ttl", "15m", "--uses", 3, "--state-dir", cluster.first.state_dir)
    assert answer.out.startswith("gw1-")
    assert len(answer.out.split()) == 1
    as_json = greedw("invite", "--json", "--state-dir", cluster.first.state_dir).json()
    assert as_json["schema"] == 1
    assert as_json["token"].startswith("gw1-")


def test_join_refuses_bad_tokens_by_what_is_wrong_with_them(
    form: Form, greedw: Run, tmp_path: Path
) -> None:
    cluster = form("a")
    token = invite(cluster, greedw)
    letter = token[-1]
    typo = greedw("join", token[:-1] + ("q" if letter != "q" else "p"), "--state-dir", tmp_path)
    assert typo.code == 5
    assert "typ" in typo.err
    other = greedw("join", "gw2" + token[3:], "--state-dir", tmp_path)
    assert other.code == 6
    assert "version" in other.err
    cluster.first.signal(signal.SIGTERM)
    assert cluster.first.wait(10) == 0
    gone = greedw("join", token, "--state-dir", tmp_path)
    assert gone.code == 4
    assert "127.0.0.1:" in gone.err
    assert "Traceback" not in typo.err + other.err + gone.err


def test_token_for_one_use_is_refused_the_second_time(form: Form, greedw: Run) -> None:
    cluster = form("a")
    token = invite(cluster, greedw)
    for name, code in (("b", 0), ("c", 5)):
        answer = greedw("join", token, "--state-dir", cluster.directory / name)
        assert answer.code == code, answer


def test_second_join_of_a_member_is_refused_and_changes_nothing(form: Form, greedw: Run) -> None:
    cluster = form("a", "b")
    token = invite(cluster, greedw)
    again = greedw("join", token, "--state-dir", cluster.daemons["b"].state_dir)
    assert again.code != 0
    assert "already" in again.err
    founded = greedw("init", "--state-dir", cluster.daemons["b"].state_dir)
    assert founded.code != 0
    assert "already" in founded.err
    assert alive_members(cluster.first.status()) == ["a", "b"]


def test_prepared_directory_is_refused_without_a_daemon_too(greedw: Run, tmp_path: Path) -> None:
    assert greedw("init", "--state-dir", tmp_path / "node").code == 0
    again = greedw("init", "--state-dir", tmp_path / "node")
    assert again.code != 0
    assert "already" in again.err
    assert str(tmp_path / "node") in again.err


@pytest.mark.parametrize("command", ["init", "join"])
def test_file_in_place_of_the_state_directory_is_named(
    command: str, form: Form, greedw: Run, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.touch()
    arguments = ["init"] if command == "init" else ["join", invite(form("a"), greedw)]
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


def test_second_daemon_on_one_directory_is_refused_and_the_first_goes_on(prepare: Prepare) -> None:
    cluster, other = prepare("a"), prepare("b")
    cluster.start()
    other.directory.mkdir(mode=0o700)
    other.first.state_dir = cluster.first.state_dir
    other.first.start()
    assert other.first.wait(20) not in {None, 0}
    assert str(cluster.first.state_dir) in other.first.log()
    assert cluster.first.status()["state"] == "unprepared"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_makes_a_daemon_leave_cleanly(number: signal.Signals, form: Form) -> None:
    cluster = form("a", "b", "c")
    leaver = cluster.daemons["b"]
    leaver.signal(number)
    assert leaver.wait(10) == 0
    assert "Traceback" not in leaver.log()
    cluster.wait_for_members(["a", "c"])
    assert not (leaver.state_dir / "control.sock").exists()
