"""A worker's process as the daemon sees it: started, heard, ended, reaped.

Theory of operation. The event loop watches three descriptors: the socket, the pipe with what the
worker writes to stderr, and its pidfd, which becomes readable when the process has ended. Plain
callbacks serve them, so a packet costs one system call and no task switch, and there is no task
that a loop in shutdown could cancel under us. When the process has ended, all that it ever said
lies in socket and pipe: they are read empty, the process is reaped, and ``on_end`` is told, once.

asyncio's own subprocesses are not used: they report the end of a process and the ends of its pipes
in no order, need a thread per process on Python 3.11, and cannot be reaped once the loop is closed.
"""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final

from greedw_daemon.worker.messages import PACKET_BYTES_MAX
from greedw_p2p.limits import KIB

logger = logging.getLogger(__name__)

HANG_UP_GRACE_S: Final = 1.0
"""A worker that has not ended this long after its socket was closed gets SIGKILL. Not SIGTERM: it
has nothing to clean up, and ignores what a service manager sends to all processes of a service."""

REAP_TIMEOUT_S: Final = 10.0
"""Only a process stuck inside the kernel outlives SIGKILL for long; then it is left to init."""

LAST_BYTES_MAX: Final = 4 * KIB
LAST_LINES_MAX: Final = 20
"""How much of a worker's stderr is kept to explain its end."""

_PACKETS_PER_WAKE: Final = 64
"""Packets served before the loop gets its turn again."""

_THREAD_CAPS: Final = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
"""Read when the libraries load, before the worker could set anything. OpenBLAS obeys the first."""

_SERVICE_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS")
"""The daemon's conversation with systemd is no business of its workers."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended: its return code as ``subprocess`` has it, and its last lines."""

    return_code: int
    last_lines: str

    def __str__(self) -> str:
        if self.return_code >= 0:
            return f"ended with exit status {self.return_code}"
        number = -self.return_code
        try:
            name = signal.Signals(number).name
        except ValueError:  # a real-time signal
            return f"died: signal {number}"
        return f"died: signal {number} ({name}: {str(signal.strsignal(number)).lower()})"


class WorkerProcess:
    """One process: rules.

    - ``on_packet`` is called for each packet in order, ``on_end`` once, after the last packet.
    - No wait is without bound, and no descriptor or zombie outlives ``on_end``.
    - The kernel kills the process when the thread that constructed this object ends.
    """

    def __init__(
        self,
        memory_descriptor: int,
        *,
        on_packet: Callable[[bytes], None],
        on_end: Callable[[Ending], None],
    ) -> None:
        """Start the process.

        Raises:
            OSError: if the host has no descriptors, processes or memory left.
        """
        self._on_packet = on_packet
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._reaped = False
        self._last = bytearray()
        self._overdue: asyncio.TimerHandle | None = None
        # ``opened`` undoes what was done so far if a later step fails; ``given`` is for the child.
        with ExitStack() as opened, ExitStack() as given:
            self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            opened.callback(self._channel.close)
            given.callback(theirs.close)
            self._stderr, stderr = os.pipe()
            opened.callback(os.close, self._stderr)
            given.callback(os.close, stderr)
            self._process = _spawn(theirs.fileno(), memory_descriptor, stderr)
            opened.callback(self._process.wait)
            opened.callback(self._process.kill)
            self._pidfd = os.pidfd_open(self._process.pid)
            opened.callback(os.close, self._pidfd)
            self._descriptors = opened.pop_all()
        self._channel.settimeout(0)
        os.set_blocking(self._stderr, False)
        self._loop.add_reader(self._channel.fileno(), self._channel_readable)
        self._loop.add_reader(self._stderr, self._read_stderr)
        self._loop.add_reader(self._pidfd, self._reap)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Tell whether the process has ended and was reaped."""
        return self._reaped

    def send(self, packet: bytes) -> bool:
        """Send a packet without waiting; tell whether there was room for it.

        A packet to a process that has ended is dropped: ``on_end`` tells of that.
        """
        if self._reaped:
            return True
        try:
            self._channel.send(packet)
        except BlockingIOError:
            return False
        except ConnectionError:
            pass
        return True

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process is still there."""
        if not self._reaped:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def stop(self) -> None:
        """End the process and wait until it is reaped; may be called again.

        The closed socket ends it at once, SIGKILL if that does not. If the waiting is cancelled,
        it is killed.
        """
        if self._reaped:
            return
        with suppress(OSError):  # not connected any more
            self._channel.shutdown(socket.SHUT_WR)
        try:
            if await self._ends_within(HANG_UP_GRACE_S):
                return
            self.signal(signal.SIGKILL)
            if await self._ends_within(REAP_TIMEOUT_S):
                return
        except asyncio.CancelledError:
            self.kill()
            raise
        self._report_survivor()

    def kill(self) -> None:
        """Kill and reap the process without the help of the loop: the last resort, at exit."""
        self.signal(signal.SIGKILL)
        try:
            self._process.wait(REAP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._report_survivor()
        else:
            self._reap()

    async def _ends_within(self, seconds: float) -> bool:
        await asyncio.wait((self._ended,), timeout=seconds)
        return self._reaped

    def _report_survivor(self) -> None:
        logger.error("worker outlived SIGKILL pid=%d after_s=%.0f", self.pid, REAP_TIMEOUT_S)

    def _channel_readable(self) -> None:
        for _ in range(_PACKETS_PER_WAKE):
            packet = self._receive()
            if packet is None:
                return
            if not packet:
                # It is ending, or has lost its socket and must: it could never be reached again.
                self._loop.remove_reader(self._channel.fileno())
                self._overdue = self._loop.call_later(HANG_UP_GRACE_S, self.signal, signal.SIGKILL)
                return
            self._on_packet(packet)

    def _receive(self) -> bytes | None:
        """Return the next packet, None if there is none yet, empty at the end."""
        if self._reaped:
            return None
        try:
            return self._channel.recv(PACKET_BYTES_MAX)
        except BlockingIOError:
            return None
        except ConnectionError:
            return b""

    def _read_stderr(self) -> bool:
        """Keep the end of what the process writes, so that its pipe never fills.

        Returns:
            Whether there may be more.
        """
        try:
            data = os.read(self._stderr, 64 * KIB)
        except BlockingIOError:
            return False
        if not data:
            self._remove_reader(self._stderr)
            return False
        self._last += data
        del self._last[:-LAST_BYTES_MAX]
        return True

    def _reap(self) -> None:
        """Take leave of a process that has ended; the only place that does."""
        if self._reaped or self._process.poll() is None:
            return
        for descriptor in (self._channel.fileno(), self._stderr, self._pidfd):
            self._remove_reader(descriptor)
        try:
            while packet := self._receive():
                self._on_packet(packet)
            while self._read_stderr():
                pass
        finally:
            self._close()

    def _close(self) -> None:
        self._reaped = True
        self._descriptors.close()
        if self._overdue is not None:
            self._overdue.cancel()
        if not self._loop.is_closed() and not self._ended.done():
            self._ended.set_result(None)
        lines = self._last.decode(errors="replace").splitlines()[-LAST_LINES_MAX:]
        self._on_end(Ending(self._process.returncode, "\n".join(lines)))

    def _remove_reader(self, descriptor: int) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(descriptor)


def _spawn(channel: int, memory: int, stderr: int) -> subprocess.Popen[bytes]:
    """Start a fresh interpreter that has two descriptors from us and nothing else.

    In its own session, because Ctrl-C in a terminal reaches a whole process group, and the daemon
    must be the one that decides. ``-P``: a file in the daemon's directory that is called like a
    module of ours must not be imported.
    """
    environment = {name: v for name, v in os.environ.items() if name not in _SERVICE_VARIABLES}
    numbers = [str(number) for number in (channel, memory, os.getpid())]
    return subprocess.Popen(  # noqa: S603 - our own interpreter, our own module
        [sys.executable, "-P", "-m", "greedw_daemon.worker.main", *numbers],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        env=environment | _THREAD_CAPS,
        pass_fds=(channel, memory),
        start_new_session=True,
    )
