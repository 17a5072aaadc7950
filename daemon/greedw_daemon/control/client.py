"""How commands reach a daemon: calls on its control socket; and what they do without a daemon."""

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final, cast

from greedw_daemon.cluster.join import UNKNOWN_ADDRESS
from greedw_daemon.cluster.setup import found_cluster, join_cluster
from greedw_daemon.cluster.state_dir import CONTROL_SOCKET, StateDir
from greedw_daemon.control.starting import default_state_dir, is_starting
from greedw_p2p.errors import DaemonError, StateDirError, StateDirInUseError

__all__ = ["ControlClient", "default_state_dir", "prepare_init", "prepare_join"]

NOT_RUNNING: Final = 3
TIMED_OUT: Final = 4
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
STARTING_S: Final = 20.0
"""How long a command waits for a daemon that was started and does not listen yet."""

PREPARED_S: Final = 60.0
"""How long a command that wanted to prepare a directory waits for a daemon that took it first."""

_LOOK_S: Final = 0.05


class ControlClient:
    """Makes calls to the daemon of a state directory, one connection per call."""

    def __init__(
        self, state_dir: Path, timeout_s: float, *, starting_s: float = STARTING_S
    ) -> None:
        """Note where to call, and how long an answer and a daemon that starts may take."""
        self._state_dir = state_dir.expanduser().absolute()
        self._timeout_s = timeout_s
        self._starting_s = starting_s

    def is_running(self) -> bool:
        """Tell whether a daemon listens on the control socket; wait for one that is starting."""
        try:
            with self._connect():
                return True
        except DaemonError as error:
            if error.exit_code == NOT_RUNNING:
                return False
            raise

    def call(self, name: str, /, **arguments: object) -> dict[str, Any]:
        """Make a call and return its result.

        Raises:
            DaemonError: the daemon does not run, does not answer in time, or says that it failed.
        """
        request = json.dumps({"call": name, "args": arguments}).encode() + b"\n"
        with self._connect() as connection:
            try:
                connection.sendall(request)
                answer = _read_line(connection)
            except TimeoutError:
                raise DaemonError(
                    f"the daemon did not answer {name!r} within {self._timeout_s:g} s",
                    hint="look at its log; greedw status shows what it waits for",
                    exit_code=TIMED_OUT,
                ) from None
            except OSError as error:
                raise _hung_up() from error
        return _result_of(answer)

    @contextlib.contextmanager
    def _connect(self) -> Generator[socket.socket]:
        """Connect, and if a daemon is starting wait until it listens.

        Raises:
            DaemonError: no daemon runs (exit 3), or it cannot be talked to.
        """
        deadline_s = time.monotonic() + self._starting_s
        while True:
            # First look who is there: one that begins to listen in between is found all the same.
            may_come = is_starting(self._state_dir) if self._starting_s > 0 else False
            with contextlib.ExitStack() as stack:
                try:
                    connection = stack.enter_context(self._connect_now())
                except DaemonError as error:
                    is_over = time.monotonic() >= deadline_s
                    if error.exit_code != NOT_RUNNING or not may_come or is_over:
                        raise
                else:
                    yield connection
                    return
            time.sleep(_LOOK_S)

    @contextlib.contextmanager
    def _connect_now(self) -> Generator[socket.socket]:
        """Connect to the control socket, however long the directory's path is."""
        with contextlib.ExitStack() as stack:
            try:
                directory = os.open(self._state_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, directory)
                connection = stack.enter_context(
                    socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
                )
                connection.settimeout(self._timeout_s)
                # A socket's path may have 107 bytes; this one is short whatever the directory is.
                connection.connect(f"/proc/self/fd/{directory}/{CONTROL_SOCKET}")
            except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
                raise DaemonError(
                    f"no daemon runs on {self._state_dir}",
                    hint=f"start it: greedwd --state-dir {self._state_dir}",
                    exit_code=NOT_RUNNING,
                ) from None
            except PermissionError as error:
                raise DaemonError(
                    f"may not talk to the daemon of {self._state_dir}: {error.strerror}",
                    hint="run the command as the user that the daemon runs as",
                    exit_code=5,
                ) from error
            except OSError as error:
                raise DaemonError(
                    f"cannot reach the daemon of {self._state_dir}: {error.strerror}",
                    exit_code=NOT_RUNNING,
                ) from error
            yield connection


def prepare_init(state_dir: Path, cluster_name: str, *, name: str | None = None) -> dict[str, Any]:
    """Found a cluster in a directory whose daemon does not run; by a daemon that just came.

    Raises:
        DaemonError: the directory cannot be used, or belongs to a cluster already.
    """
    try:
        with _opened(state_dir, name) as directory:
            return found_cluster(directory, cluster_name)
    except StateDirInUseError as error:
        return _leave_to_daemon(state_dir, error, "init", name=cluster_name)


def prepare_join(state_dir: Path, token: str, *, name: str | None = None) -> dict[str, Any]:
    """Redeem an invitation for a directory whose daemon does not run; by one that just came.

    Raises:
        DaemonError: the directory cannot be used or belongs to a cluster already, or the
            invitation is mistyped, refused, or cannot be redeemed.
    """
    try:
        with _opened(state_dir, name) as directory:
            return asyncio.run(join_cluster(directory, token, UNKNOWN_ADDRESS))
    except StateDirInUseError as error:
        return _leave_to_daemon(state_dir, error, "join", token=token)


def _leave_to_daemon(
    state_dir: Path, error: StateDirInUseError, call: str, /, **arguments: object
) -> dict[str, Any]:
    """Make the call of the daemon that holds the directory, where it is a daemon that does."""
    try:
        client = ControlClient(state_dir, PREPARED_S, starting_s=STARTING_S)
        return client.call(call, **arguments)
    except DaemonError as failure:
        if failure.exit_code != NOT_RUNNING:
            raise
        raise DaemonError(str(error), hint=error.hint) from error


@contextlib.contextmanager
def _opened(state_dir: Path, name: str | None) -> Generator[StateDir]:
    try:
        with StateDir.open(state_dir, name=name) as directory:
            yield directory
    except StateDirInUseError:
        raise
    except StateDirError as error:
        raise DaemonError(str(error), hint=error.hint) from error


def _read_line(connection: socket.socket) -> bytes:
    data = bytearray()
    while not data.endswith(b"\n"):
        piece = connection.recv(65_536)
        if not piece:
            raise _hung_up()
        data += piece
        if len(data) > ANSWER_BYTES_MAX:
            raise DaemonError("the daemon's answer is far too long")
    return bytes(data)


def _hung_up() -> DaemonError:
    return DaemonError(
        "the daemon hung up before it answered", hint="look at its log", exit_code=NOT_RUNNING
    )


def _result_of(line: bytes) -> dict[str, Any]:
    try:
        answer: Any = json.loads(line)
        if answer["ok"]:
            return cast("dict[str, Any]", answer["result"])
        error = answer["error"]
        failure = DaemonError(
            str(error["message"]), hint=str(error["hint"]), exit_code=int(error["exit_code"])
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DaemonError(
            "the daemon's answer cannot be read",
            hint="it probably runs another version of greedw: restart greedwd",
            exit_code=6,
        ) from error
    raise failure
