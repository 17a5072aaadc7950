import asyncio
import json
import os
import socket
import stat
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from greedw_daemon.cluster.state_dir import CONTROL_SOCKET, StateDir
from greedw_daemon.control import client as control_client
from greedw_daemon.control import server as control_server
from greedw_daemon.control.client import (
    ControlClient,
    default_state_dir,
    prepare_init,
    prepare_join,
)
from greedw_daemon.control.server import LINE_BYTES_MAX, ControlServer
from greedw_p2p.errors import ConfigError, DaemonError

Scene = Callable[[ControlServer], Coroutine[Any, Any, None]]


async def answer(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    match name:
        case "echo":
            return arguments
        case "slow":
            await asyncio.sleep(60)
        case "refuse":
            raise DaemonError("refused here", hint="try there", exit_code=5)
        case "misconfigured":
            raise ConfigError("set wrongly", hint="set it rightly")
        case _:
            raise ZeroDivisionError
    raise AssertionError


def serve(directory: Path, scene: Scene) -> None:
    async def main() -> None:
        server = ControlServer(directory, answer)
        await server.open()
        try:
            async with asyncio.timeout(20):
                await scene(server)
        finally:
            await server.close()

    uvloop.run(main())
    assert not (directory / CONTROL_SOCKET).exists()


async def call(directory: Path, name: str, timeout_s: float = 10, **arguments: object) -> Any:
    client = ControlClient(directory, timeout_s)
    return await asyncio.to_thread(lambda: client.call(name, **arguments))


async def raises(calling: Awaitable[Any]) -> DaemonError:
    with pytest.raises(DaemonError) as caught:
        await calling
    return caught.value


def test_answer_is_the_handlers(tmp_path: Path) -> None:
    async def scene(_: ControlServer) -> None:
        assert await call(tmp_path, "echo", text="grüß\nGott", number=3) == {
            "text": "grüß\nGott",
            "number": 3,
        }

    serve(tmp_path, scene)


def test_errors_keep_message_hint_and_exit_code(tmp_path: Path) -> None:
    async def scene(_: ControlServer) -> None:
        refused = await raises(call(tmp_path, "refuse"))
        assert (str(refused), refused.hint, refused.exit_code) == ("refused here", "try there", 5)
        wrong = await raises(call(tmp_path, "misconfigured"))
        assert (str(wrong), wrong.hint, wrong.exit_code) == ("set wrongly", "set it rightly", 1)

    serve(tmp_path, scene)


def test_bug_in_a_handler_is_answered_and_the_server_goes_on(tmp_path: Path) -> None:
    async def scene(_: ControlServer) -> None:
        error = await raises(call(tmp_path, "bug"))
        assert "internal error of the daemon: ZeroDivisionError" in str(error)
        assert await call(tmp_path, "echo", still=1) == {"still": 1}

    serve(tmp_path, scene)


def test_socket_is_private_and_works_below_a_path_longer_than_a_socket_address(
    tmp_path: Path,
) -> None:
    directory = tmp_path / ("long-" * 12) / ("path-" * 12)
    directory.mkdir(parents=True)
    assert len(str(directory / CONTROL_SOCKET)) > 120

    async def scene(_: ControlServer) -> None:
        found = (directory / CONTROL_SOCKET).stat()
        assert stat.S_ISSOCK(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o600
        assert await call(directory, "echo", far=True) == {"far": True}

    serve(directory, scene)


def test_slow_call_holds_up_no_other(tmp_path: Path) -> None:
    async def scene(_: ControlServer) -> None:
        slow = asyncio.ensure_future(raises(call(tmp_path, "slow", timeout_s=1.0)))
        for number in range(5):
            assert await call(tmp_path, "echo", number=number) == {"number": number}
        assert not slow.done()
        error = await slow
        assert error.exit_code == 4
        assert "did not answer 'slow' within 1 s" in str(error)

    serve(tmp_path, scene)


def test_closing_server_cancels_calls_and_clients_learn_of_it(tmp_path: Path) -> None:
    async def scene(server: ControlServer) -> None:
        slow = asyncio.ensure_future(raises(call(tmp_path, "slow")))
        await asyncio.sleep(0.1)
        await server.close()
        error = await slow
        assert (str(error), error.exit_code) == ("the daemon hung up before it answered", 3)

    serve(tmp_path, scene)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"not json\n", "cannot be read"),
        (b"[1, 2]\n", "cannot be read"),
        (b'{"call": 3}\n', "cannot be read"),
        (b'{"call": "echo", "args": []}\n', "cannot be read"),
        (b"[" * 60_000 + b"\n", "cannot be read"),
        (b"x" * (2 * LINE_BYTES_MAX) + b"\n", "too long"),
    ],
)
def test_request_that_is_none_is_answered_with_an_error(
    tmp_path: Path, line: bytes, words: str
) -> None:
    async def scene(_: ControlServer) -> None:
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / CONTROL_SOCKET))
        writer.write(line)
        error = json.loads(await reader.readline())
        assert error["ok"] is False
        assert words in error["error"]["message"]
        writer.close()
        assert await call(tmp_path, "echo") == {}

    serve(tmp_path, scene)


def test_idle_connection_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "IDLE_S", 0.05)

    async def scene(_: ControlServer) -> None:
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / CONTROL_SOCKET))
        assert await reader.read() == b""
        writer.close()

    serve(tmp_path, scene)


def test_connections_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "CONNECTIONS_MAX", 2)

    async def scene(_: ControlServer) -> None:
        opened = [
            await asyncio.open_unix_connection(str(tmp_path / CONTROL_SOCKET)) for _ in range(3)
        ]
        assert await opened[2][0].read() == b""
        opened[0][1].write(b'{"call": "echo"}\n')
        assert json.loads(await opened[0][0].readline())["ok"] is True
        for pair in opened:
            pair[1].close()

    serve(tmp_path, scene)


def test_user_other_than_ours_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(_: ControlServer) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 12_345)
        monkeypatch.setattr(control_server, "ROOT", 12_346)
        error = await raises(call(tmp_path, "echo"))
        assert "hung up" in str(error)
        monkeypatch.undo()
        assert await call(tmp_path, "echo") == {}

    serve(tmp_path, scene)


def test_stale_socket_of_a_killed_daemon_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / CONTROL_SOCKET))
    client = ControlClient(tmp_path, 1)
    assert not client.is_running()
    with pytest.raises(DaemonError) as caught:
        client.call("status")
    assert caught.value.exit_code == 3

    async def scene(_: ControlServer) -> None:
        assert await call(tmp_path, "echo", new=1) == {"new": 1}

    serve(tmp_path, scene)


@pytest.mark.parametrize("place", ["missing", "missing/deeper", "file"])
def test_command_without_a_daemon_says_how_to_start_it(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DaemonError, match=f"no daemon runs on {tmp_path / place}") as caught:
        ControlClient(tmp_path / place, 1).call("status")
    assert caught.value.exit_code == 3
    assert caught.value.hint == f"start it: greedwd --state-dir {tmp_path / place}"


def test_answer_that_is_nonsense_is_an_error_about_versions(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / CONTROL_SOCKET))
        other.listen()

        async def scene() -> None:
            calling = asyncio.ensure_future(raises(call(tmp_path, "status")))
            connection, _ = await asyncio.to_thread(other.accept)
            connection.sendall(b'{"fine": true}\n')
            error = await calling
            assert error.exit_code == 6
            assert "another version" in error.hint
            connection.close()

        asyncio.run(scene())


def test_default_directory_is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GREEDW_STATE_DIR", "/srv/node")
    assert default_state_dir() == Path("/srv/node")
    monkeypatch.delenv("GREEDW_STATE_DIR")
    assert default_state_dir().name == "greedw"


def test_init_without_a_daemon_prepares_once(tmp_path: Path) -> None:
    made = prepare_init(tmp_path, "the-lab", name="a")
    assert (made["cluster_name"], made["name"]) == ("the-lab", "a")
    with pytest.raises(DaemonError, match="belongs to the cluster the-lab already") as caught:
        prepare_init(tmp_path, "other")
    assert caught.value.exit_code == 6
    assert str(tmp_path) in str(caught.value)
    with StateDir.open(tmp_path) as directory:
        record = directory.cluster()
        assert record is not None
        assert record.founder
        assert record.cluster == made["cluster"]


@pytest.mark.parametrize("name", ["", "the lab", "lab\n", "\x1b[31mlab", "-lab", "a" * 65])
def test_cluster_name_that_would_have_to_be_changed_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DaemonError, match="cannot be the name of a cluster") as caught:
        prepare_init(tmp_path, name)
    assert caught.value.exit_code == 2
    assert "letters, digits" in caught.value.hint
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    with StateDir.open(tmp_path) as directory:
        assert directory.cluster() is None


def test_preparing_beside_a_running_process_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "STARTING_S", 0.2)
    with StateDir.open(tmp_path), pytest.raises(DaemonError, match=f"by process {os.getpid()}"):
        prepare_init(tmp_path, "lab")


def test_join_with_a_mistyped_token_touches_nothing_but_the_directory(tmp_path: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(DaemonError) as caught:
        prepare_join(tmp_path, "gw1-qqqq")
    assert caught.value.exit_code == 5
    assert time.monotonic() - begin < 1
    with StateDir.open(tmp_path) as directory:
        assert directory.cluster() is None


def test_abandoned_call_ends_and_others_are_finished(tmp_path: Path) -> None:
    begun, ended, finished = (asyncio.Event() for _ in range(3))

    async def wait(name: str, _: dict[str, Any]) -> dict[str, Any]:
        begun.set()
        try:
            await asyncio.sleep(60 if name == "train" else 0.1)
        except asyncio.CancelledError:
            ended.set()
            raise
        finished.set()
        return {}

    async def main() -> None:
        server = ControlServer(tmp_path, wait, abandonable={"train"})
        await server.open()
        async with asyncio.timeout(20):
            for name in ("train", "leave"):
                _, writer = await asyncio.open_unix_connection(str(tmp_path / CONTROL_SOCKET))
                writer.write(json.dumps({"call": name}).encode() + b"\n")
                begun.clear()
                await begun.wait()
                writer.close()
            await ended.wait()
            await finished.wait()
        await server.close()

    uvloop.run(main())
