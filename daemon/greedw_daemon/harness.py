"""The harness: real daemons on this machine, started, watched, killed and cleaned up after.

``greedw demo`` and the shell tests use it. Every daemon has a state directory of its own below one
directory, listens on a loopback port that the system chose, and dies with the process that
started it, so that nothing is left behind in any exit.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from greedw_daemon.control.client import ControlClient
from greedw_p2p.errors import DaemonError

START_S: Final = 20.0
"""Limit from the start of a process to an answer on its control socket: numpy and numba are
imported on a busy machine."""

MEMBERS_S: Final = 30.0
POLITE_S: Final = 3.0
"""How long daemons may take to leave one after another; then they are told to end at once."""

STOP_S: Final = 8.0
"""Limit of an end that was asked for; whatever takes longer is killed."""

CALL_S: Final = 10.0
POLL_S: Final = 0.05
LOG_LINES: Final = 10
"""Last lines of a log that an error quotes."""

END_S: Final = 1.0
"""How long after its last connection broke a process is given to be seen as ended."""

TAG_VARIABLE: Final = "GREEDW_HARNESS"
"""Marks every process of one harness, grandchildren too, so that strays can be found."""

_NOT_RUNNING: Final = 3
_TIMED_OUT: Final = 4
_INHERITED_BUT_NOT_OURS: Final = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "GREEDW_STATE_DIR"})

ResultT = TypeVar("ResultT")
Shield = Callable[[], contextlib.AbstractContextManager[object]]
"""Makes a block of a few statements that no signal handler may break by raising."""


class DaemonEndedError(DaemonError):
    """A daemon ended that nobody had asked to."""

    def __init__(self, daemon: "DaemonProcess", what: str) -> None:
        super().__init__(
            f"{daemon.name} {_manner_of(daemon.exit_code)} while waiting for {what}",
            hint=daemon.log_tail(),
        )
        self.daemon = daemon


class DaemonProcess:
    """One ``greedwd`` process and its state directory."""

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        tag: str,
        environment: Mapping[str, str] | None = None,
        listen: str = "127.0.0.1:0",
    ) -> None:
        self.name = name
        self.state_dir = directory / name
        self.log_path = directory / f"{name}.log"
        self.expected_to_run = False
        self.listen = listen
        self.environment = dict(environment or {}) | {TAG_VARIABLE: tag}
        """For the next start; a test may change it for one daemon."""
        self.working_directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; again after it ended, with the same state directory."""
        assert not self.is_running(), f"{self.name} runs already"
        kept = {k: v for k, v in os.environ.items() if k not in _INHERITED_BUT_NOT_OURS}
        command = [sys.executable, "-P", "-m", "greedw_daemon", "--name", self.name]
        command += ["--state-dir", str(self.state_dir), "--listen", self.listen]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.working_directory,
                env=kept | self.environment | {"GREEDW_DIE_WITH_PARENT": "1"},
                # A group of its own: Ctrl-C reaches the starter, which then ends the daemons in
                # order, instead of all of them at once.
                process_group=0,
            )
        self.expected_to_run = True

    @property
    def pid(self) -> int:
        """The process id of the newest start."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How the process ended (negative: by that signal), None while it runs."""
        return None if self._process is None else self._process.poll()

    def is_running(self) -> bool:
        """Tell whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended; its end is no surprise from now on."""
        if number in {signal.SIGTERM, signal.SIGINT, signal.SIGKILL}:
            self.expected_to_run = False
        if self.is_running():
            assert self._process is not None
            self._process.send_signal(number)

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end and return the exit code, or None if it did not end in time."""
        if self._process is None:
            return None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def call(
        self, name: str, /, *, timeout_s: float = CALL_S, **arguments: object
    ) -> dict[str, Any]:
        """Make a call on the daemon's control socket."""
        return ControlClient(self.state_dir, timeout_s).call(name, **arguments)

    def status(self) -> dict[str, Any]:
        """Return the daemon's own status."""
        return self.call("status")

    def newest_job(self) -> dict[str, Any] | None:
        """Return the job that was started last, as this daemon knows it."""
        jobs: list[dict[str, Any]] = self.call("jobs")["jobs"]
        return jobs[-1] if jobs else None

    def children(self) -> list[int]:
        """Return the ids of the daemon's child processes: its workers."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(word) for word in path.read_text(encoding="ascii").split()]

    def log(self) -> str:
        """Return all that the daemon has written."""
        try:
            return self.log_path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def log_tail(self, lines: int = LOG_LINES) -> str:
        """Return the last lines of the log, under the daemon's name."""
        tail = self.log().splitlines()[-lines:] or ["(nothing)"]
        return "\n".join([f"--- the last lines of {self.name}'s log", *tail])


class LocalCluster:
    """Several daemons, and one place that ends all of them.

    Use it as a context manager. ``close`` may be called again, and finishes what an interrupted
    call left.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        shield: Shield = contextlib.nullcontext,
    ) -> None:
        """Only note what to do; with ``directory``, that is used and kept."""
        self._shield = shield
        self._tag = uuid.uuid4().hex
        self._temporary: Path | None = None
        if directory is None:
            # The name cannot be guessed, and mkdir refuses one that exists.
            self._temporary = directory = Path(tempfile.gettempdir()) / f"greedw-{self._tag}"
        self.directory = directory
        self.hurry = False
        """Set from a signal handler: kill what has not ended yet, politeness is over."""
        self.daemons = {
            name: DaemonProcess(name, directory, tag=self._tag, environment=environment)
            for name in names
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def first(self) -> DaemonProcess:
        """The daemon that founds the cluster."""
        return next(iter(self.daemons.values()))

    def start(self, *names: str) -> None:
        """Start the named daemons, or all, and wait until they answer."""
        if self._temporary is not None and not self._temporary.exists():
            self._temporary.mkdir(mode=0o700)
        chosen = [self.daemons[name] for name in names or self.daemons]
        for daemon in chosen:
            with self._shield():
                daemon.start()
        for daemon in chosen:
            self.wait_for(
                partial(_answers, daemon), START_S, f"{daemon.name} to answer", concerned=daemon
            )

    def form(self, cluster: str = "local") -> None:
        """Found a cluster with the first daemon and let the others join, as a person would."""
        founder, *others = self.daemons.values()
        self.call(founder, "init", f"{founder.name} to found the cluster", name=cluster)
        for daemon in others:
            what = f"{daemon.name} to join"
            token = self.call(founder, "invite", what, ttl_s=600, uses=1)["token"]
            self.call(daemon, "join", what, timeout_s=MEMBERS_S, token=token)
        self.wait_for_members(self.daemons)

    def wait_for_members(self, names: Iterable[str], timeout_s: float = MEMBERS_S) -> None:
        """Wait until each of the named daemons has exactly them as members, all alive."""
        wanted = sorted(names)
        for name in wanted:
            daemon = self.daemons[name]
            self.wait_for(
                partial(_has_members, daemon, wanted),
                timeout_s,
                f"{name} to have the members {', '.join(wanted)}",
                concerned=daemon,
            )

    def call(
        self,
        daemon: DaemonProcess,
        name: str,
        what: str,
        /,
        *,
        timeout_s: float = CALL_S,
        **arguments: object,
    ) -> dict[str, Any]:
        """Make a call that may take long, and notice meanwhile if any daemon ends.

        Raises:
            DaemonError: the call failed, or a daemon ended while this waited for ``what``.
        """
        answer: Future[dict[str, Any]] = Future()

        def make_call() -> None:
            try:
                answer.set_result(daemon.call(name, timeout_s=timeout_s, **arguments))
            except DaemonError as error:
                answer.set_exception(error)

        # A daemon thread: when a signal ends the wait, nobody needs its answer any more.
        threading.Thread(target=make_call, name=f"call {name}", daemon=True).start()
        return self.wait_for(
            lambda: answer.result() if answer.done() else None,
            timeout_s + END_S,
            what,
            concerned=daemon,
        )

    def wait_for(
        self,
        condition: Callable[[], ResultT | None],
        timeout_s: float,
        what: str,
        *,
        concerned: DaemonProcess | None = None,
    ) -> ResultT:
        """Poll until ``condition`` returns something true, and return that.

        Raises:
            DaemonError: when the time is over or a daemon ended that should run; it quotes the
                last lines of the log of that daemon, or of the one that is ``concerned``.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                if result := condition():
                    return result
            except DaemonError as error:
                self._blame_the_ended(error, what)
                raise
            self.check_running(what)
            if time.monotonic() > deadline_s:
                raise DaemonError(
                    f"waited {timeout_s:.0f} s in vain for {what}",
                    hint=(concerned or self.first).log_tail(),
                    exit_code=_TIMED_OUT,
                )
            self.pause(POLL_S)

    def pause(self, seconds: float) -> None:
        """Sleep between two looks; a signal that came meanwhile is obeyed at the end."""
        with self._shield():
            time.sleep(seconds)

    def log_tails(self, lines: int = LOG_LINES) -> str:
        """Return the last lines of every daemon's log, under its name."""
        return "\n".join(daemon.log_tail(lines) for daemon in self.daemons.values())

    def close(self) -> None:
        """End every daemon together, politely first, and remove what was temporary."""
        begin_s = time.monotonic()
        for until_s in (begin_s + POLITE_S, begin_s + STOP_S):
            # The second SIGTERM says: at once, without the others' agreement.
            for daemon in self.daemons.values():
                daemon.signal(signal.SIGTERM)
                daemon.signal(signal.SIGCONT)  # a stopped process takes no other signal
            self._wait_until_ended(until_s)
        for daemon in self.daemons.values():
            daemon.signal(signal.SIGKILL)
            daemon.wait(STOP_S)
        self._kill_strays()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def strays(self) -> list[int]:
        """Return the ids of processes of this harness, workers included, that still run."""
        marker = f"{TAG_VARIABLE}={self._tag}".encode()
        found: list[int] = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
                if marker in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found

    def left_behind(self) -> list[str]:
        """Name what ``close`` could not remove; empty is what should be."""
        left = [f"process {pid}" for pid in self.strays()]
        if self._temporary is not None and self._temporary.exists():
            left.append(f"directory {self._temporary}")
        return left

    def _wait_until_ended(self, until_s: float) -> None:
        while any(daemon.is_running() for daemon in self.daemons.values()):
            if self.hurry or time.monotonic() > until_s:
                return
            time.sleep(POLL_S)

    def _kill_strays(self) -> None:
        """Kill workers that outlived a killed daemon; the kernel tells them, but not at once."""
        deadline_s = time.monotonic() + 1.0
        while (strays := self.strays()) and time.monotonic() < deadline_s and not self.hurry:
            time.sleep(POLL_S)
        for pid in strays:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def check_running(self, what: str) -> None:
        """Raise a DaemonEndedError if a daemon ended that nobody ended during the wait."""
        for daemon in self.daemons.values():
            if daemon.expected_to_run and not daemon.is_running():
                raise DaemonEndedError(daemon, what)

    def _blame_the_ended(self, error: DaemonError, what: str) -> None:
        """Raise a DaemonEndedError if that is why a call failed; its log says more."""
        self.check_running(what)
        deadline_s = time.monotonic() + END_S
        while error.exit_code == _NOT_RUNNING and time.monotonic() < deadline_s:
            self.pause(POLL_S)
            self.check_running(what)


def _manner_of(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:  # a real-time signal has no name
        name = f"signal {-exit_code}"
    return f"was ended by {name}"


def alive_members(status: Mapping[str, Any]) -> list[str]:
    """Return the sorted names of the members that a node hears, itself included."""
    return sorted(m["name"] for m in status["members"] if m["state"] == "alive")


def _has_members(daemon: DaemonProcess, wanted: list[str]) -> bool:
    return alive_members(daemon.status()) == wanted


def _answers(daemon: DaemonProcess) -> bool:
    try:
        daemon.status()
    except DaemonError:
        # Not listening yet; a process that ended is found by the caller.
        return False
    return True
