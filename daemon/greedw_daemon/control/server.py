"""The control socket: requests of commands on this machine, one JSON object per line.

Each connection is served by its own task and each request answered in its order; a slow one
(``train`` loads data and compiles) holds up only its own connection.
"""

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, Final, cast

from greedw_daemon.cluster.state_dir import CONTROL_SOCKET
from greedw_daemon.log_setup import get_logger
from greedw_daemon.tasks import TaskSet
from greedw_p2p.errors import ConfigError, DaemonError, GreedwError, StateDirError

LINE_BYTES_MAX: Final = 64 * 1024
CONNECTIONS_MAX: Final = 64
ROOT: Final = 0
IDLE_S: Final = 60.0
"""A connection that sends no request for so long is closed."""

WRITE_S: Final = 10.0

_PEER_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid: struct ucred

Handler = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]

log = get_logger()


class ControlServer:
    """Serves the control socket in a state directory."""

    def __init__(
        self, directory: Path, handler: Handler, *, abandonable: Collection[str] = ()
    ) -> None:
        """Serve calls by ``handler``; those named ``abandonable`` end with their connection."""
        self._path = directory / CONTROL_SOCKET
        self._handler = handler
        self._abandonable = abandonable
        self._server: asyncio.Server | None = None
        self._tasks = TaskSet()
        self._file: tuple[int, int] | None = None

    async def open(self) -> None:
        """Listen; the caller holds the directory's lock, so a socket that is there is stale.

        Raises:
            StateDirError: the socket cannot be made there.
        """
        try:
            listening = _bind(self._path)
            self._file = _identity_of(self._path)
        except OSError as error:
            raise StateDirError(
                f"cannot make the control socket {self._path}: {error.strerror}"
            ) from error
        self._server = await asyncio.start_unix_server(
            self._accepted, sock=listening, limit=LINE_BYTES_MAX
        )

    async def close(self) -> None:
        """Stop serving and remove the socket. Requests under way are cancelled."""
        if self._server is not None:
            self._server.close()
            self._server = None
            if self.is_in_place():  # and not another's, in a directory that replaced ours
                self._path.unlink(missing_ok=True)
        await self._tasks.close()

    def is_in_place(self) -> bool:
        """Tell whether the socket in the directory still is the one that is served."""
        return self._file is not None and _identity_of(self._path) == self._file

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        uid = _uid_of(writer)
        if uid not in {os.geteuid(), ROOT}:
            log.warning("control connection refused", uid=uid)
            writer.close()
            return
        if len(self._tasks) >= CONNECTIONS_MAX:
            log.warning("control connection refused", reason="too many", limit=CONNECTIONS_MAX)
            writer.close()
            return
        self._tasks.start(self._serve(reader, writer), "control connection")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upcoming = asyncio.ensure_future(reader.readline())
        try:
            while line := await _within(IDLE_S, upcoming):
                # Read on meanwhile: the end of the connection must be noticed during a call.
                upcoming = asyncio.ensure_future(reader.readline())
                writer.write(await self._answer(line, upcoming))
                async with asyncio.timeout(WRITE_S):
                    await writer.drain()
        except TimeoutError:
            pass  # idle, or it does not read its answer
        except ValueError:
            writer.write(_failure(DaemonError("the request is too long", exit_code=2)))
        except OSError:
            pass  # the command was interrupted
        finally:
            upcoming.cancel()
            with contextlib.suppress(OSError):
                writer.close()

    async def _answer(self, line: bytes, upcoming: "asyncio.Future[bytes]") -> bytes:
        try:
            name, arguments = _parse(line)
            result = await self._carry_out(name, arguments, upcoming)
        except GreedwError as error:
            return _failure(error)
        except ConnectionAbortedError:
            raise
        except Exception as error:
            # A bug of ours: it is in the log with its trace, and whoever asked must not be left
            # without an answer.
            log.exception("call failed")
            return _failure(
                DaemonError(
                    f"internal error of the daemon: {error!r}",
                    hint="its log has the details; please report it",
                )
            )
        return json.dumps({"ok": True, "result": result}).encode() + b"\n"

    async def _carry_out(
        self, name: str, arguments: dict[str, Any], upcoming: "asyncio.Future[bytes]"
    ) -> dict[str, Any]:
        """Make the call; give it up if it may be given up and the connection ends."""
        call = asyncio.ensure_future(self._handler(name, arguments))
        try:
            if name in self._abandonable:
                await asyncio.wait((call, upcoming), return_when=asyncio.FIRST_COMPLETED)
                if not call.done() and _has_ended(upcoming):
                    log.info("call abandoned", call=name)
                    raise ConnectionAbortedError
            return await call
        finally:
            call.cancel()
            await asyncio.wait((call,))


async def _within(limit_s: float, reading: "asyncio.Future[bytes]") -> bytes:
    async with asyncio.timeout(limit_s):
        return await reading


def _has_ended(reading: "asyncio.Future[bytes]") -> bool:
    """Tell whether a connection was closed, by what reading on gave."""
    if not reading.done():
        return False
    return reading.cancelled() or reading.exception() is not None or not reading.result()


def _parse(line: bytes) -> tuple[str, dict[str, Any]]:
    try:
        request: Any = json.loads(line)
        name, arguments = request["call"], request.get("args", {})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DaemonError("the request cannot be read", exit_code=6) from None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise DaemonError("the request cannot be read", exit_code=6)
    return name, cast("dict[str, Any]", arguments)


def _failure(error: GreedwError) -> bytes:
    hint = error.hint if isinstance(error, DaemonError | ConfigError) else ""
    exit_code = error.exit_code if isinstance(error, DaemonError) else 1
    described = {"message": str(error), "hint": hint, "exit_code": exit_code}
    return json.dumps({"ok": False, "error": described}).encode() + b"\n"


def _uid_of(writer: asyncio.StreamWriter) -> int:
    """Return the user at the other end, as the kernel knows it."""
    connection: Any = writer.get_extra_info("socket")
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    return int(_PEER_CREDENTIALS.unpack(data)[1])


def _identity_of(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _bind(path: Path) -> socket.socket:
    """Bind the socket, 0600 from its first moment, however long the path is."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        path.unlink(missing_ok=True)
        # On Linux the socket file takes the mode of the socket itself.
        os.fchmod(listening.fileno(), 0o600)
        listening.bind(f"/proc/self/fd/{directory}/{path.name}")
    except OSError:
        listening.close()
        raise
    finally:
        os.close(directory)
    return listening
