"""Whole daemons as processes: what the service manager, a starter and an operator rely on."""

import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from greedw_daemon.cluster.setup import found_cluster
from greedw_daemon.cluster.state_dir import CONTROL_SOCKET, StateDir
from greedw_daemon.control.client import ControlClient, prepare_init, prepare_join
from greedw_p2p.errors import DaemonError

WAIT_S = 20.0


class Process:
    """One ``greedwd`` with a state directory, and its calls."""

    def __init__(self, directory: Path, *options: str, **environment: str) -> None:
        self.directory = directory
        command = [sys.executable, "-P", "-m", "greedw_daemon", "--state-dir", str(directory)]
        command += options if "--listen" in options else ("--listen", "127.0.0.1:0", *options)
        self.process = subprocess.Popen(
            command,
            # A run of the tests that is killed leaves no daemon behind.
            env=os.environ | {"GREEDW_DIE_WITH_PARENT": "1"} | environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, name: str, /, **arguments: object) -> Any:
        return ControlClient(self.directory, WAIT_S).call(name, **arguments)

    def started(self) -> "Process":
        wait_for(lambda: self.process.poll() is not None or self._answers())
        assert self.process.poll() is None, self.process.communicate()
        return self

    def _answers(self) -> bool:
        return ControlClient(self.directory, WAIT_S).is_running()

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, log = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, log

    def members(self) -> list[str]:
        status = self.call("status")
        return sorted(m["name"] for m in status["members"] if m["state"] == "alive")


Start = Callable[..., Process]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start daemons; whatever is left of them at the end is killed."""
    started: list[Process] = []

    def make(directory: Path, *options: str, **environment: str) -> Process:
        started.append(Process(directory, *options, **environment))
        return started[-1]

    yield make
    for daemon in started:
        daemon.process.kill()
        daemon.process.communicate(timeout=WAIT_S)


@pytest.fixture(scope="module")
def unprepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Serve the tests that only ask, with a daemon that is in no cluster."""
    daemon = Process(tmp_path_factory.mktemp("unprepared")).started()
    yield daemon
    assert daemon.end()[0] == 0


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Serve the tests that only ask, with a daemon that is the one member of its cluster."""
    directory = tmp_path_factory.mktemp("alone")
    prepare_init(directory, "lab", name="a")
    daemon = Process(directory).started()
    wait_for(lambda: daemon.members() == ["a"])
    yield daemon
    assert daemon.end()[0] == 0


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_service_manager_hears_of_start_life_and_stop(tmp_path: Path, start: Start) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT_S)
        prepare_init(tmp_path / "a", "lab", name="a")
        daemon = start(
            tmp_path / "a", NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="1000000"
        )
        heard = [manager.recv(4096).decode()]
        while heard[-1] != "READY=1":
            heard.append(manager.recv(4096).decode())
        while "1 of 1 members" not in heard[-1]:
            heard.append(manager.recv(4096).decode())
        assert heard[-1].startswith("STATUS=member, ")
        assert "WATCHDOG=1" in heard
        code, log = daemon.end()
        assert code == 0, log
        assert any(manager.recv(4096) == b"STOPPING=1" for _ in range(100))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_unprepared_daemon_ends_cleanly(
    tmp_path: Path, start: Start, number: signal.Signals
) -> None:
    daemon = start(tmp_path / "a").started()
    assert (tmp_path / "a" / CONTROL_SOCKET).exists()
    code, log = daemon.end(number)
    assert code == 0, log
    assert not (tmp_path / "a" / CONTROL_SOCKET).exists()
    StateDir.open(tmp_path / "a").close()  # the lock is free


def test_shutdown_call_ends_the_daemon(tmp_path: Path, start: Start) -> None:
    daemon = start(tmp_path / "a").started()
    assert daemon.call("shutdown") == {"schema": 1}
    assert daemon.process.wait(WAIT_S) == 0


def test_daemon_ends_with_its_starter_if_asked_to(tmp_path: Path) -> None:
    program = (
        "import os, subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-P', '-m', 'greedw_daemon', '--state-dir', sys.argv[1],"
        " '--listen', '127.0.0.1:0'], env=os.environ | {'GREEDW_DIE_WITH_PARENT': '1'})\n"
        "time.sleep(60)\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "a")])
    client = ControlClient(tmp_path / "a", WAIT_S)
    wait_for(client.is_running)
    pid = client.call("status")["pid"]
    starter.kill()
    starter.wait(WAIT_S)
    wait_for(lambda: not Path(f"/proc/{pid}/fd").exists() or not client.is_running())
    wait_for(lambda: not (tmp_path / "a" / CONTROL_SOCKET).exists())


def test_status_of_an_unprepared_daemon_has_the_same_keys_as_of_a_member(
    unprepared: Process, alone: Process
) -> None:
    before, after = unprepared.call("status"), alone.call("status")
    assert (before["state"], before["prepared"], before["members"]) == ("unprepared", False, [])
    assert unprepared.call("jobs") == {"schema": 1, "jobs": []}
    assert after["prepared"] is True
    assert before.keys() == after.keys()
    assert before["topology"].keys() == after["topology"].keys()
    assert alone.call("topology").keys() == after["topology"].keys() | {"schema"}


@pytest.mark.parametrize("call", ["invite", "leave", "train", "stop"])
def test_call_that_needs_a_cluster_says_how_to_get_one(unprepared: Process, call: str) -> None:
    with pytest.raises(DaemonError, match="in no cluster yet") as caught:
        unprepared.call(call, **({"kind": "mnist-2nn"} if call == "train" else {}))
    assert caught.value.exit_code == 6
    assert "greedw init" in caught.value.hint


def test_ipv6_works_from_end_to_end(tmp_path: Path, start: Start) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6 loopback")
    listen = ("--listen", "[::1]:0")
    a = start(tmp_path / "a", "--name", "a", *listen).started()
    a.call("init", name="lab")
    token = a.call("invite")["token"]
    b = start(tmp_path / "b", "--name", "b", *listen).started()
    b.call("join", token=token)
    wait_for(lambda: a.members() == b.members() == ["a", "b"])
    assert a.call("status")["address"].startswith("[::1]:")


def test_daemon_stopped_by_a_signal_comes_back_as_a_member_when_it_starts_again(
    tmp_path: Path, start: Start
) -> None:
    a = start(tmp_path / "a", "--name", "a").started()
    a.call("init", name="lab")
    token = a.call("invite")["token"]
    prepare_join(tmp_path / "b", token, name="b")
    b = start(tmp_path / "b").started()
    wait_for(lambda: a.members() == ["a", "b"])
    code, log = b.end()
    assert code == 0, log
    wait_for(lambda: a.members() == ["a"])
    b = start(tmp_path / "b").started()
    wait_for(lambda: a.members() == b.members() == ["a", "b"])
    assert b.call("status")["incarnation"] == 3  # the join offline was a life too


def test_killed_member_is_replaced_by_its_next_life(tmp_path: Path, start: Start) -> None:
    names = ["a", "b", "c"]
    daemons = {name: start(tmp_path / name, "--name", name).started() for name in names}
    daemons["a"].call("init", name="lab")
    for name in ("b", "c"):
        daemons[name].call("join", token=daemons["a"].call("invite")["token"])
    wait_for(lambda: all(daemon.members() == names for daemon in daemons.values()))
    # Not the leader: this version does not yet replace one that dies.
    leader = daemons["a"].call("status")["leader"]
    victim = next(name for name in ("b", "c") if name != leader)
    daemons[victim].end(signal.SIGKILL)
    wait_for(lambda: daemons["a"].members() == [name for name in names if name != victim])
    assert (tmp_path / victim / CONTROL_SOCKET).exists()
    daemons[victim] = start(tmp_path / victim).started()
    wait_for(lambda: all(daemon.members() == names for daemon in daemons.values()))


def test_command_leave_frees_the_directory_and_the_daemon_goes_on(
    tmp_path: Path, start: Start
) -> None:
    a = start(tmp_path / "a", "--name", "a").started()
    b = start(tmp_path / "b", "--name", "b").started()
    a.call("init", name="lab")
    b.call("join", token=a.call("invite", uses=1)["token"])
    wait_for(lambda: a.members() == b.members() == ["a", "b"])
    assert b.call("leave")["cluster_name"] == "lab"
    assert b.call("status")["state"] == "unprepared"
    wait_for(lambda: a.members() == ["a"])
    # The same process can come back, as a new life of the same node.
    b.call("join", token=a.call("invite")["token"])
    wait_for(lambda: a.members() == b.members() == ["a", "b"])
    b.call("leave")
    b.call("init", name="another")
    wait_for(lambda: b.members() == ["b"])


def test_training_alone_runs_to_the_end_and_its_worker_goes(tmp_path: Path, start: Start) -> None:
    a = start(tmp_path / "a", "--name", "a").started()
    a.call("init", name="lab")
    a.call("train", kind="mnist-2nn", epochs=1, batch=1000)
    wait_for(lambda: a.call("jobs")["jobs"][-1]["state"] == "finished")
    job = a.call("train", kind="mnist-2nn", epochs=1000, batch=100)["job"]
    with pytest.raises(
        DaemonError, match=f"job {job} is running already; one job runs at a time"
    ) as busy:
        a.call("train", kind="mnist-2nn")
    assert busy.value.exit_code == 5
    assert a.call("stop", job=job)["job"] == job
    ended = a.call("jobs")["jobs"][-1]
    assert (ended["id"], ended["state"]) == (job, "stopped")
    pid = a.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children")
    wait_for(lambda: children.read_text() == "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kind": "mnist-9nn"}, "no job called 'mnist-9nn'"),
        ({"kind": "mnist-2nn", "epochs": 0}, "epochs"),
        ({"kind": "mnist-2nn", "learning_rate": "fast"}, "learning_rate"),
        ({"kind": "mnist-2nn", "colour": 1}, "colour"),
    ],
)
def test_train_with_a_wrong_argument_is_wrong_usage(
    alone: Process, arguments: dict[str, object], words: str
) -> None:
    with pytest.raises(DaemonError, match=words) as caught:
        alone.call("train", **arguments)
    assert caught.value.exit_code == 2


def test_train_without_its_data_is_wrong_configuration(alone: Process, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, words in (("missing", "no data folder"), ("file", "is a file")):
        with pytest.raises(DaemonError, match=words) as caught:
            alone.call("train", kind="mnist-2nn", data_dir=str(tmp_path / place))
        assert caught.value.exit_code == 6


def test_interrupted_train_command_leaves_no_job(alone: Process) -> None:
    with pytest.raises(DaemonError) as caught:
        ControlClient(alone.directory, 0.05).call("train", kind="mnist-2nn")
    assert caught.value.exit_code == 4
    pid = alone.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children")
    wait_for(lambda: children.read_text() == "" and alone.call("jobs")["jobs"] == [])


def test_second_signal_stops_at_once(tmp_path: Path, start: Start) -> None:
    a = start(tmp_path / "a", "--name", "a").started()
    b = start(tmp_path / "b", "--name", "b").started()
    a.call("init", name="lab")
    b.call("join", token=a.call("invite")["token"])
    wait_for(lambda: a.members() == b.members() == ["a", "b"])
    # Without the senior member b has no quorum that could agree to its leave.
    a.process.kill()
    a.process.wait(WAIT_S)
    begin = time.monotonic()
    b.process.send_signal(signal.SIGTERM)
    wait_for(lambda: b.call("status")["state"] == "leaving")
    code, log = b.end()
    assert code == 0, log
    assert time.monotonic() - begin < 5
    assert "second signal" in log


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.2, 0.3, 0.5, 0.8])
def test_commands_right_after_the_start_find_the_daemon(
    tmp_path: Path, start: Start, delay_s: float
) -> None:
    daemon = start(tmp_path / "a")
    time.sleep(delay_s)  # whatever stage of its start that meets
    client = ControlClient(tmp_path / "a", WAIT_S)
    if client.is_running():
        client.call("init", name="lab")
    else:
        prepare_init(tmp_path / "a", "lab")
    assert client.call("invite")["token"].startswith("gw1-")
    assert [m["name"] for m in client.call("status")["members"]] == [client.call("status")["name"]]
    assert daemon.end()[0] == 0


def test_daemon_takes_up_a_directory_that_is_prepared_while_it_starts(
    tmp_path: Path, start: Start
) -> None:
    with StateDir.open(tmp_path / "a") as directory:
        daemon = start(tmp_path / "a")
        found_cluster(directory, "lab")
        time.sleep(0.5)  # it tries the lock meanwhile
    assert daemon.call("status")["members"] != []
    assert daemon.end()[0] == 0


def test_second_daemon_for_a_directory_ends_at_once(alone: Process, start: Start) -> None:
    second = start(alone.directory)
    _, log = second.process.communicate(timeout=WAIT_S)
    assert second.process.returncode == 78
    assert f"in use by process {alone.process.pid}" in log


def test_closed_terminal_lets_the_daemon_leave_and_end(tmp_path: Path, start: Start) -> None:
    daemon = start(tmp_path / "a").started()
    daemon.call("init", name="lab")
    code, log = daemon.end(signal.SIGHUP)
    assert code == 0, log
    assert "signal=SIGHUP" in log
    assert 'event="daemon stopped" reason="as asked"' in log


def test_hangup_changes_nothing_under_a_service_manager(tmp_path: Path, start: Start) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        daemon = start(tmp_path / "a", NOTIFY_SOCKET=str(tmp_path / "notify")).started()
        daemon.call("status")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.call("init", name="lab")
        code, log = daemon.end()
    assert code == 0, log
    assert "nothing to reload" in log


def test_daemon_goes_on_when_nobody_reads_its_log(tmp_path: Path, start: Start) -> None:
    daemon = start(tmp_path / "a").started()
    assert daemon.process.stderr is not None
    daemon.process.stderr.close()
    daemon.call("init", name="lab")
    daemon.call("invite")
    daemon.call("shutdown")
    assert daemon.process.wait(WAIT_S) == 0


def test_daemon_ends_with_an_error_when_its_directory_is_removed(
    tmp_path: Path, start: Start
) -> None:
    daemon = start(tmp_path / "a", "--name", "a").started()
    shutil.rmtree(tmp_path / "a")
    _, log = daemon.process.communicate(timeout=WAIT_S)
    assert daemon.process.returncode == 1
    assert 'level=error node=a event="state directory lost"' in log
    assert 'event="daemon stopped"' in log.splitlines()[-1]
    assert "Traceback" not in log


def test_node_that_cannot_write_its_directory_stops_and_says_why_in_one_line(
    tmp_path: Path, start: Start
) -> None:
    a = start(tmp_path / "a", "--name", "a").started()
    b = start(tmp_path / "b", "--name", "b").started()
    a.call("init", name="lab")
    b.call("join", token=a.call("invite")["token"])
    wait_for(lambda: a.members() == b.members() == ["a", "b"])
    # As on a full disk: every write to a file fails from now on.
    resource.prlimit(b.process.pid, resource.RLIMIT_FSIZE, (0, 0))
    with pytest.raises(DaemonError, match="cannot write") as caught:
        b.call("invite")
    assert "free space" in caught.value.hint
    a.process.send_signal(signal.SIGTERM)
    _, log = b.process.communicate(timeout=WAIT_S)
    assert b.process.returncode == 1
    assert "Traceback" not in log
    stopped, ended = log.splitlines()[-2:]
    assert 'level=error node=b event="node stopped"' in stopped
    assert 'level=error node=b event="daemon stopped"' in ended
    assert "File too large" in ended


def test_port_in_use_is_named_and_may_be_retried(tmp_path: Path, start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        daemon = start(tmp_path / "a", "--listen", f"127.0.0.1:{port}")
        _, log = daemon.process.communicate(timeout=WAIT_S)
    assert daemon.process.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: the port is in use" in log
    assert "ss -ltnp" in log
    assert "Traceback" not in log
