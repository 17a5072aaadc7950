"""How commands reach a daemon: calls on its control socket; and what they do without a daemon."""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final, cast

import platformdirs

from greedw_daemon.cluster.join import UNKNOWN_ADDRESS
from greedw_daemon.cluster.setup import found_cluster, join_cluster
from greedw_daemon.cluster.state_dir import CONTROL_SOCKET, StateDir
from greedw_p2p.errors import DaemonError, StateDirError

STATE_DIR_VARIABLE: Final = "GREEDW_STATE_DIR"
NOT_RUNNING: Final = 3
TIMED_OUT: Final = 4
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024


def default_state_dir() -> Path:
    """Return where a node lives unless told otherwise."""
    chosen = os.environ.get(STATE_DIR_VARIABLE, "")
    return Path(chosen) if chosen else Path(platformdirs.user_data_dir("greedw", appauthor=False))


class ControlClient:
    """Makes calls to the daemon of a state directory, one connection per call."""

    def __init__(self, state_dir: Path, timeout_s: float) -> None:
        self._state_dir = state_dir.expanduser().absolute()
        self._timeout_s = timeout_s

    def is_running(self) -> bool:
        """Tell whether a daemon listens on the control socket."""
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
    """Found a cluster in a directory whose daemon does not run.

    Raises:
        DaemonError: the directory cannot be used, or belongs to a cluster already.
    """
    with _opened(state_dir, name) as directory:
        return found_cluster(directory, cluster_name)


def prepare_join(state_dir: Path, token: str, *, name: str | None = None) -> dict[str, Any]:
    """Redeem an invitation for a directory whose daemon does not run.

    Raises:
        DaemonError: the directory cannot be used or belongs to a cluster already, or the
            invitation is mistyped, refused, or cannot be redeemed.
    """
    with _opened(state_dir, name) as directory:
        return asyncio.run(join_cluster(directory, token, UNKNOWN_ADDRESS))


@contextlib.contextmanager
def _opened(state_dir: Path, name: str | None) -> Generator[StateDir]:
    try:
        with StateDir.open(state_dir, name=name) as directory:
            yield directory
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
