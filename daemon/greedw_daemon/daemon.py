"""The daemon: what is there as long as the process is, around the node that comes and goes.

The state directory is locked, the port is listened on and the control socket serves from the start
to the end. A node runs while the directory belongs to a cluster: from the start, or from ``init``
or ``join``, until ``leave``.
"""

import asyncio
import importlib
import os
import signal
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from greedw_daemon.cluster.invites import InviteBook
from greedw_daemon.cluster.join import names_cluster
from greedw_daemon.cluster.setup import found_cluster, join_cluster
from greedw_daemon.cluster.state_dir import StateDir
from greedw_daemon.control.server import ControlServer
from greedw_daemon.jobs.order import JobOrder
from greedw_daemon.log_setup import get_logger
from greedw_daemon.network.addresses import address_for_peers
from greedw_daemon.network.handshake import HandshakeStream
from greedw_daemon.network.listener import Listener
from greedw_daemon.notify import Notifier
from greedw_daemon.settings import Settings
from greedw_daemon.tasks import TaskSet
from greedw_daemon.unprepared import unprepared_error, unprepared_status
from greedw_p2p.config import Address
from greedw_p2p.errors import DaemonError, StateDirError
from greedw_p2p.invitation import Invitation, format_token, hash_of_cluster
from greedw_p2p.limits import TICK_US
from greedw_p2p.node.effects import Stopped
from greedw_p2p.wire.codec import decode
from greedw_p2p.wire.messages import (
    Channel,
    Hello,
    JoinAccepted,
    JoinRequest,
    RefusalCode,
    Refused,
)

if TYPE_CHECKING:
    from greedw_daemon.runtime import NodeRuntime

SCHEMA: Final = 1
READY_S: Final = 60.0
"""How long a call waits for the daemon to be ready: kernels may have to be compiled first."""

LEAVE_S: Final = 10.0
"""How long a signal waits for the round in progress and the others' agreement to the leave."""

STATUS_EVERY_TICKS: Final = 8
STUCK_EVENTS: Final = 1024
"""So many events waiting mean that the node does not get on: the watchdog is not fed then."""

CONTACTS_MAX: Final = 64
"""Members that a newcomer is told; it learns of the others from them."""

TIMED_OUT: Final = 4
_ABANDONABLE: Final = frozenset({"train"})
"""Calls that end when the command that made them is interrupted."""

Call = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

log = get_logger()


class Daemon:
    """One ``greedwd`` process."""

    def __init__(self, settings: Settings, directory: StateDir, notifier: Notifier) -> None:
        """Take over a locked state directory; ``run`` gives it back."""
        self._settings = settings
        self._directory = directory
        self._notifier = notifier
        self._invites = InviteBook(directory, random_bytes=os.urandom)
        self._listener = Listener(self)
        self._control = ControlServer(directory.path, self._call, abandonable=_ABANDONABLE)
        self._address: Address | None = None
        self._runtime: NodeRuntime | None = None
        self._leaving: NodeRuntime | None = None
        self._ready = asyncio.Event()
        self._membership = asyncio.Lock()
        self._stop_asked = asyncio.Event()
        self._hurry_asked = asyncio.Event()
        self._failure: str | None = None
        self._is_stopping = False
        self._ticks = 0
        self._tick_due = 0.0
        self._ticker: asyncio.TimerHandle | None = None
        self._tasks = TaskSet()
        self._calls: dict[str, Call] = {
            "status": self._status,
            "init": self._init,
            "join": self._join,
            "invite": self._invite,
            "leave": self._leave,
            "train": self._train,
            "jobs": self._jobs,
            "stop": self._stop,
            "evict": self._evict,
            "topology": self._topology,
            "shutdown": self._shutdown,
        }

    async def run(self) -> int:
        """Serve until a signal or a failure; return the exit code.

        Raises:
            ConfigError, DaemonError: the daemon cannot start as it is told to.
        """
        self._watch_signals()
        try:
            await self._start()
            await self._stop_asked.wait()
            self._notifier.stopping()
            self._is_stopping = True
            await self._leave_politely()
        finally:
            await self._close()
        return 0 if self._failure is None else 1

    # -- beginning and end ------------------------------------------------------------------------

    async def _start(self) -> None:
        settings = self._settings
        # First of all: a command that comes now waits for what follows.
        await self._control.open()
        bound = await self._listener.open(settings.host, settings.port)
        self._address = address_for_peers(bound, settings.advertise)
        loop = asyncio.get_running_loop()
        self._tick_due = loop.time()
        self._tick()
        loading = loop.run_in_executor(None, _load_kernels)
        # A thread cannot be cancelled; a signal meanwhile is obeyed when it is done.
        await asyncio.wait((loading,))
        loading.result()
        record = self._directory.cluster()
        async with self._membership:
            wanted = record is not None and not self._stop_asked.is_set()
            if wanted and self._runtime is None:
                self._begin_life()
        log.info(
            "daemon started",
            version=version("greedw-p2p"),
            pid=os.getpid(),
            listening=str(bound),
            address=str(self._address),
            state_dir=str(self._directory.path),
            cluster=None if record is None else record.name,
        )
        if settings.insecure:
            log.warning("connections are neither encrypted nor authenticated", reason="--insecure")
        self._notifier.ready()
        self._ready.set()

    async def _close(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        await self._control.close()
        await self._listener.close()
        if self._runtime is not None:
            await self._runtime.close()
            self._runtime = None
        await self._tasks.close()
        self._directory.close()
        if self._failure is not None:
            log.error("daemon stopped", reason=self._failure)
        elif self._stop_asked.is_set():
            log.info("daemon stopped", reason="as asked")

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        if self._notifier.is_listened_to:
            loop.add_signal_handler(signal.SIGHUP, self._reload_asked)
        elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
            loop.add_signal_handler(signal.SIGHUP, self._signalled, signal.SIGHUP)

    def _reload_asked(self) -> None:
        log.info("nothing to reload: settings are read at the start", signal="SIGHUP")

    def _signalled(self, number: signal.Signals) -> None:
        if self._stop_asked.is_set():
            log.warning("second signal: stopping at once", signal=number.name)
            self._hurry_asked.set()
        else:
            log.info("stopping after the round in progress", signal=number.name)
            self._stop_asked.set()

    async def _leave_politely(self) -> None:
        """Leave the cluster if that can be done in time; the directory still belongs to it."""
        runtime = self._runtime
        if runtime is None or runtime.ended.done():
            return
        leaving = asyncio.ensure_future(runtime.leave_within(LEAVE_S))
        hurry = asyncio.ensure_future(self._hurry_asked.wait())
        try:
            await asyncio.wait((leaving, hurry), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            hurry.cancel()
        if not runtime.ended.done():
            log.warning("stopped without the others' agreement to the leave")
        elif runtime.ended.result().failed:
            self._failure = self._failure or runtime.ended.result().reason

    def _begin_life(self) -> None:
        """Let a node run for the cluster of the state directory."""
        from greedw_daemon.runtime import NodeRuntime  # noqa: PLC0415 - see _load_kernels

        record = self._directory.cluster()
        assert record is not None
        assert self._address is not None
        runtime = self._runtime = NodeRuntime(self._directory, record, self._address)
        self._tasks.start(self._watch(runtime), "watch the node")
        log.info(
            "node started",
            cluster=record.name,
            id=runtime.me.node,
            incarnation=runtime.me.incarnation,
        )

    def _begin_first_life(self) -> None:
        """Let a node run for a new cluster; if it cannot, the cluster is none of ours."""
        try:
            self._begin_life()
        except StateDirError:
            self._directory.forget_cluster()
            raise

    async def _watch(self, runtime: "NodeRuntime") -> None:
        """End the process when its node ends of itself."""
        stopped: Stopped = await asyncio.shield(runtime.ended)
        if self._is_stopping or runtime is not self._runtime or runtime is self._leaving:
            return
        self._failure = stopped.reason
        log.error("node stopped", reason=stopped.reason, failed=stopped.failed)
        self._stop_asked.set()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        lag_us = max(0, int((now - self._tick_due) * 1e6))
        if self._runtime is not None:
            self._runtime.tick(lag_us)
        if self._runtime is None or self._runtime.backlog < STUCK_EVENTS:
            self._notifier.alive()
        if self._ticks % STATUS_EVERY_TICKS == 0:
            self._notifier.status(self._summary())
            self._check_directory()
        self._ticks += 1
        # Ticks that were missed, in a suspended machine for one, are not made up for.
        self._tick_due = max(self._tick_due, now - TICK_US / 1e6) + TICK_US / 1e6
        self._ticker = loop.call_at(self._tick_due, self._tick)

    def _check_directory(self) -> None:
        """End the process if its state directory is gone: commands cannot reach it any more."""
        if self._stop_asked.is_set() or self._control.is_in_place():
            return
        self._failure = f"the control socket in {self._directory.path} was removed or replaced"
        log.error("state directory lost", reason=self._failure)
        self._stop_asked.set()

    # -- those who dial us (Door) ------------------------------------------------------------------

    def refuse(self, hello: Hello) -> Refused | None:
        """Say why a newcomer may not come in."""
        runtime = self._runtime
        if runtime is None:
            return Refused(RefusalCode.CLUSTER, "it is in no cluster")
        if hello.channel is not Channel.JOIN:
            return runtime.mesh.refuse(hello)
        if not names_cluster(hello, runtime.record.cluster):
            return Refused(RefusalCode.CLUSTER, "it belongs to another cluster than the token's")
        if hello.member.node == runtime.me.node:
            return Refused(RefusalCode.IDENTITY, "it has the same node id as the one that joins")
        return None

    async def admit(self, hello: Hello, stream: HandshakeStream) -> None:
        """Carry a handshake on."""
        runtime = self._runtime
        if runtime is None:
            await stream.finish(Refused(RefusalCode.BUSY, "it is leaving its cluster"))
        elif hello.channel is Channel.JOIN:
            await self._redeem(runtime, hello, stream)
        else:
            await runtime.mesh.admit(hello, stream)

    async def _redeem(self, runtime: "NodeRuntime", hello: Hello, stream: HandshakeStream) -> None:
        frame = await stream.read()
        request = decode(frame.kind, frame.header, (JoinRequest,))
        try:
            refused = self._invites.redeem(request, hello.member.node, time.time())
        except StateDirError as error:
            log.error("invitation could not be used up", reason=str(error))  # noqa: TRY400 - no bug
            refused = Refused(RefusalCode.BUSY, "it cannot write its state directory")
        if refused is not None:
            log.warning(
                "invitation refused",
                peer=hello.member.name,
                address=stream.peer_name,
                reason=refused.reason,
            )
            await stream.finish(refused)
            return
        log.info("invitation redeemed", peer=hello.member.name, check_only=request.check_only)
        await stream.finish(
            JoinAccepted(
                runtime.record.cluster,
                runtime.record.name,
                runtime.lineage,
                runtime.contacts()[:CONTACTS_MAX],
            )
        )

    # -- calls of commands -------------------------------------------------------------------------

    async def _call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        call = self._calls.get(name)
        if call is None:
            raise DaemonError(
                f"the daemon knows no call {name!r}",
                hint="command and daemon are of different versions: restart greedwd",
                exit_code=6,
            )
        if self._is_stopping and name != "status":
            raise DaemonError("the daemon is stopping", exit_code=3)
        if name != "shutdown":
            await self._wait_ready()
        return {"schema": SCHEMA} | await call(arguments)

    async def _status(self, arguments: dict[str, Any]) -> dict[str, Any]:
        del arguments
        runtime = self._runtime
        if runtime is None:
            status = unprepared_status(self._directory.identity, str(self._address))
        else:
            status = runtime.status()
        return status | {
            "pid": os.getpid(),
            "version": version("greedw-p2p"),
            "insecure": self._settings.insecure,
            "prepared": runtime is not None,
        }

    async def _jobs(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"jobs": (await self._status(arguments))["jobs"]}

    async def _topology(self, arguments: dict[str, Any]) -> dict[str, Any]:
        topology: dict[str, Any] = (await self._status(arguments))["topology"]
        return topology

    async def _init(self, arguments: dict[str, Any]) -> dict[str, Any]:
        name = str(arguments.get("name", "greedw"))
        async with self._membership:
            answer = found_cluster(self._directory, name)
            self._begin_first_life()
            return answer

    async def _join(self, arguments: dict[str, Any]) -> dict[str, Any]:
        token = str(arguments.get("token") or "")
        async with self._membership:
            assert self._address is not None
            answer = await join_cluster(self._directory, token, self._address)
            self._begin_first_life()
            return answer

    async def _invite(self, arguments: dict[str, Any]) -> dict[str, Any]:
        runtime = self._prepared()
        ttl_s, uses = _whole(arguments, "ttl_s", 3600), _whole(arguments, "uses", 1)
        now_s = time.time()
        token_id, secret = self._invites.make(ttl_s=ttl_s, uses=uses, now_s=now_s)
        invitation = Invitation(
            hash_of_cluster(runtime.record.cluster), token_id, secret, (runtime.member.address,)
        )
        return {"token": format_token(invitation), "expires": int(now_s) + ttl_s, "uses": uses}

    async def _leave(self, arguments: dict[str, Any]) -> dict[str, Any]:
        del arguments
        self._prepared()
        async with self._membership:
            runtime = self._leaving = self._prepared()
            try:
                await runtime.leave()
            except DaemonError:
                self._leaving = None
                raise
            try:
                await runtime.close()
            finally:
                # Also if the daemon is told to stop just now: the node has left.
                self._runtime = self._leaving = None
                self._directory.forget_cluster()
            self._invites = InviteBook(self._directory, random_bytes=os.urandom)
            log.info("left the cluster", cluster=runtime.record.name)
        return {"cluster_name": runtime.record.name}

    async def _train(self, arguments: dict[str, Any]) -> dict[str, Any]:
        order = JobOrder.parse(arguments)
        return {"job": await self._prepared().train(order)}

    async def _stop(self, arguments: dict[str, Any]) -> dict[str, Any]:
        job = str(arguments.get("job") or "")
        await self._prepared().stop_job(job)
        return {"job": job}

    async def _evict(self, arguments: dict[str, Any]) -> dict[str, Any]:
        node = str(arguments.get("node") or "")
        await self._prepared().evict(node)
        return {"node": node}

    async def _shutdown(self, arguments: dict[str, Any]) -> dict[str, Any]:
        del arguments
        log.info("stopping after the round in progress", asked_by="shutdown")
        self._stop_asked.set()
        return {}

    # -- inside ------------------------------------------------------------------------------------

    async def _wait_ready(self) -> None:
        try:
            async with asyncio.timeout(READY_S):
                await self._ready.wait()
        except TimeoutError:
            raise DaemonError(
                f"the daemon is not ready yet after {READY_S:.0f} s",
                hint="it compiles kernels, which a busy machine may delay; try again, see its log",
                exit_code=TIMED_OUT,
            ) from None

    def _prepared(self) -> "NodeRuntime":
        if self._runtime is None:
            raise unprepared_error()
        return self._runtime

    def _summary(self) -> str:
        """Return a line for the service manager."""
        if self._runtime is None:
            return "in no cluster yet: greedw init, or greedw join TOKEN"
        status = self._runtime.status()
        alive = sum(1 for member in status["members"] if member["state"] == "alive")
        line = f"{status['state']}, {alive} of {len(status['members'])} members"
        if status["jobs"]:
            job = status["jobs"][-1]
            line += f", {job['id']} {job['state']}, round {job['round']} of {job['rounds']}"
        return line


def _load_kernels() -> None:
    """Load what needs numba, and have the kernels compiled: seconds, on a busy machine.

    Nothing that this module needs from the start may import it.
    """
    importlib.import_module("greedw_daemon.runtime")
    from greedw_p2p.kernels import summation  # noqa: PLC0415

    summation.warm()


def _whole(arguments: dict[str, Any], name: str, default: int) -> int:
    value = arguments.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise DaemonError(f"{name} must be a whole number, not {value!r}", exit_code=2)
    return value
