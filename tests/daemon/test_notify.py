import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from greedw_daemon.notify import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A service manager's socket, and how NOTIFY_SOCKET names it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        if request.param == "path":
            name = str(tmp_path / "notify")
            receiver.bind(name)
        else:
            name = f"@greedw-test-{os.getpid()}"
            receiver.bind("\0" + name[1:])
        receiver.settimeout(5)
        yield receiver, name


def test_each_message_reaches_the_manager(manager: tuple[socket.socket, str]) -> None:
    receiver, name = manager
    notifier = Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000000"})
    assert notifier.watchdog_s == 30
    notifier.ready()
    notifier.status("healthy,\n  round 3 of 10")
    notifier.status("healthy, round 3 of 10")
    notifier.alive()
    notifier.stopping()
    got = [receiver.recv(4096).decode() for _ in range(4)]
    assert got == ["READY=1", "STATUS=healthy, round 3 of 10", "WATCHDOG=1", "STOPPING=1"]
    notifier.close()


def test_watchdog_of_another_process_is_not_fed(manager: tuple[socket.socket, str]) -> None:
    receiver, name = manager
    environment = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}
    notifier = Notifier(environment)
    notifier.alive()
    notifier.ready()
    assert receiver.recv(4096) == b"READY=1"
    notifier.close()


@pytest.mark.parametrize("name", ["", "relative/path", "/nowhere/notify", "@nobody-listens"])
def test_manager_that_is_not_there_disturbs_nothing(name: str) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "soon"})
    assert notifier.watchdog_s is None
    notifier.ready()
    notifier.stopping()
    notifier.close()


def test_manager_that_does_not_read_does_not_block(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000"})
        for _ in range(5000):
            notifier.alive()
        notifier.close()
