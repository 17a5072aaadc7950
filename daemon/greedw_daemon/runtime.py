"""The runtime of one life of this node: feeds its state machine and carries out what it says.

One callback of the event loop owns the machine, so nothing of it needs a lock. Events wait in an
inbox and are handled when the loop gets to it, never inside the callback that noticed them. The
effects of one event are carried out in order, each before the next; where one must be on the disk
first (Persist), the rest waits, and the loop goes on serving sockets.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from greedw_daemon.cluster.state_dir import AcceptedConfig, Agreement, ClusterRecord, StateDir
from greedw_daemon.data_plane.plane import DataPlane
from greedw_daemon.jobs.hosts import JobHosts
from greedw_daemon.jobs.order import JobOrder
from greedw_daemon.log_setup import get_logger
from greedw_daemon.network.content import ContentClient, ContentServer
from greedw_daemon.network.mesh import Mesh
from greedw_daemon.tasks import TaskSet
from greedw_p2p.config import Address, Config, Member
from greedw_p2p.errors import DaemonError, PeerError, StateDirError
from greedw_p2p.ids import EntryIndex, JobId, LineageId, MemberId, NodeId, short
from greedw_p2p.node import effects as fx
from greedw_p2p.node import events
from greedw_p2p.node.boot import Boot
from greedw_p2p.node.core import Node
from greedw_p2p.wire.messages import Bytes, ContentMessage, ControlMessage, Fault, GetBytes

EVENTS_PER_TURN: Final = 64
"""Events handled before sockets and timers get their turn again."""

INBOX_EVENTS_MAX: Final = 4096
"""Events that may wait, for instance for a slow disk; beyond it peers are not read."""

REQUEST_S: Final = 60.0
"""Limit of a user's request inside the cluster, which waits for the round in progress."""

TRAIN_S: Final = 240.0
"""The same for a new job: every member may have to compile kernels first."""

TIMED_OUT: Final = 4
REFUSED: Final = 5
_EXIT_CODES: Final = {
    Fault.FAILED: 1,
    Fault.UNREACHABLE: TIMED_OUT,
    Fault.BUSY: REFUSED,
    Fault.UNFIT: 6,
}
BUSY_STATES: Final = frozenset({"preparing", "running", "paused"})

log = get_logger()


class NodeRuntime:
    """One life of this node in one cluster."""

    def __init__(self, directory: StateDir, record: ClusterRecord, address: Address) -> None:
        """Begin a new life: its number is on the disk when this returns."""
        self._directory = directory
        self.record = record
        identity = directory.identity
        self.member = Member(identity.node, directory.next_incarnation(), identity.name, address)
        self.me: MemberId = self.member.id
        self.ended: asyncio.Future[fx.Stopped] = asyncio.get_running_loop().create_future()
        self._node = Node(
            self.member,
            _boot(directory, record, self.member),
            rng=random.Random(),  # noqa: S311 - spreads timers and gossip, guards nothing
            now_us=_now_us(),
        )
        self.mesh = Mesh(self.member, record.cluster, self)
        self.data_plane = DataPlane(
            me=self.me,
            dial=self.mesh.dial_bulk,
            name_of=self._name_of,
            on_finished=self._attempt_finished,
            on_broken=self.post,
        )
        self._content_server = ContentServer(self._send_content, self._find_content)
        self._content_client = ContentClient(self._send_content)
        self._names: dict[NodeId, str] = {m.node: m.name for m in record.contacts}
        self._jobs = JobHosts(self)
        self._inbox: deque[events.Event] = deque()
        self._effects: deque[fx.Effect] = deque()
        self._is_scheduled = False
        self._is_persisting = False
        self._is_reading_paused = False
        self._is_halted = False
        self._replies: dict[int, asyncio.Future[fx.Reply]] = {}
        self._requests = 0
        self._writing: asyncio.Future[None] | None = None
        self._tasks = TaskSet()

    # -- for the daemon -------------------------------------------------------------------------

    def tick(self, lag_us: int) -> None:
        """Let a heartbeat interval pass."""
        self.post(events.Ticked(lag_us))

    @property
    def lineage(self) -> LineageId:
        """The lineage that this node's messages name."""
        return self._node.lineage

    def contacts(self) -> tuple[Member, ...]:
        """Return this node and the peers it is connected to: whom a newcomer should dial."""
        return (self.member, *self.mesh.members())

    def status(self) -> dict[str, Any]:
        """Return the node's status as plain values, with what only the shell knows."""
        status: dict[str, Any] = msgspec.to_builtins(self._node.status(_now_us()))
        status["phase"] = self.data_plane.phase()
        listed = {job["id"] for job in status["jobs"]}
        status["jobs"] = [*status["jobs"], *self._jobs.preparing(listed)]
        return status

    async def train(self, order: JobOrder) -> JobId:
        """Start a job that a user submits at this node; return when it is in the log.

        Raises:
            DaemonError: this node or another one cannot run it, or one is running already.
        """
        self._check_free_for_job()
        spec, state = await self._jobs.found(order)
        try:
            await self._request(lambda number: events.SubmitJob(number, spec, state), TRAIN_S)
        except BaseException:
            await self._jobs.discard(spec.id)
            raise
        return spec.id

    async def stop_job(self, job: str) -> None:
        """End a job after the round in progress.

        Raises:
            DaemonError: there is no such job, or the leader does not answer.
        """
        await self._request(lambda number: events.StopJob(number, JobId(job)))

    async def evict(self, who: str) -> None:
        """Remove a member that is gone for good.

        Raises:
            DaemonError: it is no member, is alive, or a quorum cannot be found.
        """
        await self._request(lambda number: events.EvictMember(number, who))

    async def leave(self) -> None:
        """Take this node out of the cluster, and wait until it may stop.

        Raises:
            DaemonError: the others cannot agree to it now.
        """
        await self._request(events.Leave)
        await asyncio.shield(self.ended)

    async def leave_within(self, limit_s: float) -> None:
        """Take this node out if that can be done in time; the process ends anyhow."""
        self.post(events.Leave(None))
        await asyncio.wait((self.ended,), timeout=limit_s)

    async def close(self) -> None:
        """End everything of this life: jobs, connections, tasks."""
        self._is_halted = True
        self._inbox.clear()
        self._effects.clear()
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(DaemonError("the daemon is stopping", exit_code=3))
        await self._tasks.close()
        if self._writing is not None:
            await asyncio.wait((self._writing,))
        await self._jobs.close()
        await self.data_plane.close()
        self._content_server.close()
        await self.mesh.close()
        if not self.ended.done():
            self.ended.set_result(fx.Stopped("stopped"))

    # -- the machine ----------------------------------------------------------------------------

    def post(self, event: events.Event) -> None:
        """Give the node an event; it is handled soon, not now."""
        if self._is_halted:
            return
        self._inbox.append(event)
        if len(self._inbox) > INBOX_EVENTS_MAX and not self._is_reading_paused:
            self._is_reading_paused = True
            self.mesh.pause_reading()
        self._schedule()

    @property
    def backlog(self) -> int:
        """Events that wait."""
        return len(self._inbox)

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._is_persisting and not self._is_halted:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Handle what waits, for a while."""
        self._is_scheduled = False
        try:
            self._handle_some()
        except Exception as error:
            # Whatever it is, the machine is not sound any more, and must not vote again.
            log.exception("node failed")
            self._is_halted = True
            self._stop(fx.Stopped(f"internal error: {error!r}", failed=True))

    def _handle_some(self) -> None:
        for _ in range(EVENTS_PER_TURN):
            while self._effects:
                if self._is_halted:
                    return
                effect = self._effects.popleft()
                if isinstance(effect, fx.Persist):
                    self._is_persisting = True
                    self._tasks.start(self._persist(effect), "persist")
                    return
                self._perform(effect)
            if self._is_halted or not self._inbox:
                break
            self._effects.extend(self._node.handle(self._inbox.popleft(), _now_us()))
        if self._is_reading_paused and len(self._inbox) < INBOX_EVENTS_MAX // 2:
            self._is_reading_paused = False
            self.mesh.resume_reading()
        if self._inbox or self._effects:
            self._schedule()

    async def _persist(self, effect: fx.Persist) -> None:
        """Write in a thread, because a slow disk must not stop heartbeats."""
        accepted = None if effect.accepted is None else AcceptedConfig(*effect.accepted)
        agreement = Agreement(effect.lineage, effect.committed_index, effect.committed, accepted)
        loop = asyncio.get_running_loop()
        writing = loop.run_in_executor(None, self._directory.write_agreement, agreement)
        self._writing = writing
        # Not cancelled with this task: the thread would go on, and write after we are gone.
        await asyncio.wait((writing,))
        error = writing.exception()
        if error is not None:
            # A vote that is not on the disk must not be cast.
            if not isinstance(error, StateDirError):
                log.error("agreement could not be persisted", exc_info=error)
            self._stop(fx.Stopped(f"the agreement cannot be persisted: {error}", failed=True))
            return
        self._is_persisting = False
        self._schedule()

    def _perform(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Send(to, message):
                self.mesh.send(to, self._node.lineage, message)
            case fx.Dial(node, address):
                self.mesh.dial(node, address)
            case fx.Persist():
                raise AssertionError("carried out by _handle_some")
            case fx.LoadJob():
                self._jobs.load(effect)
            case fx.UnloadJob(job):
                self._jobs.unload(job)
            case fx.BeginAttempt():
                self._jobs.begin(effect)
            case fx.CancelAttempt(index, ballot):
                self.data_plane.cancel(index, ballot)
            case fx.FetchResult():
                self._jobs.fetch_result(effect)
            case fx.ApplyResult():
                self._jobs.apply(effect)
            case fx.FlipState(entry_id):
                self._jobs.flip(entry_id)
            case fx.Reply():
                self._replied(effect)
            case fx.Note(severity, event, fields):
                log.log(int(severity), event, **fields)
            case fx.Committed():
                log.debug("entry committed", entry=effect.index, kind=effect.kind.value)
            case fx.Stopped():
                # One that left says its last words; one that broke must not say another.
                self._is_halted = effect.failed
                self._stop(effect)

    def _stop(self, stopped: fx.Stopped) -> None:
        """Tell the daemon that this life is over."""
        if not self.ended.done():
            self.ended.set_result(stopped)

    # -- requests of users ------------------------------------------------------------------------

    async def _request(
        self, event: Callable[[int], events.Event], limit_s: float = REQUEST_S
    ) -> fx.Reply:
        """Make a request of the node and wait for its reply.

        Raises:
            DaemonError: the reply is an error, or does not come in time.
        """
        self._requests += 1
        number = self._requests
        waiting: asyncio.Future[fx.Reply] = asyncio.get_running_loop().create_future()
        self._replies[number] = waiting
        self.post(event(number))
        try:
            async with asyncio.timeout(limit_s):
                reply = await waiting
        except TimeoutError:
            raise DaemonError(
                f"the cluster did not carry it out within {limit_s:.0f} s",
                hint="greedw status says what it waits for",
                exit_code=TIMED_OUT,
            ) from None
        finally:
            del self._replies[number]
        if reply.error:
            raise DaemonError(
                reply.error,
                hint="greedw status says how the cluster is",
                exit_code=_EXIT_CODES[reply.fault],
            )
        return reply

    def _replied(self, reply: fx.Reply) -> None:
        waiting = self._replies.get(reply.request)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    def _check_free_for_job(self) -> None:
        for job in self.status()["jobs"]:
            if job["state"] in BUSY_STATES:
                raise DaemonError(
                    f"job {job['id']} is {job['state']} already; one job runs at a time",
                    hint=f"wait for it, or end it: greedw stop {job['id']}",
                    exit_code=REFUSED,
                )

    # -- what the mesh tells ----------------------------------------------------------------------

    def peer_connected(self, member: Member) -> None:
        """Pass it on."""
        self._names[member.node] = member.name
        self.post(events.PeerConnected(member))

    def peer_disconnected(self, peer: MemberId, reason: str) -> None:
        """Pass it on, and end fetches from that peer."""
        self._content_client.peer_lost(peer, reason)
        self.post(events.PeerDisconnected(peer, reason))

    def dial_failed(self, node: NodeId, reason: str) -> None:
        """Pass it on."""
        log.debug("dial failed", peer=self._name_of(node), reason=reason)
        self.post(events.DialFailed(node, reason))

    def message_received(
        self, sender: MemberId, lineage: LineageId, message: ControlMessage
    ) -> None:
        """Pass it on."""
        self.post(events.MessageReceived(sender, lineage, message))

    def content_received(self, sender: MemberId, message: ContentMessage, body: bytes) -> None:
        """Serve a piece, or take one in; the node need not know."""
        match message:
            case GetBytes():
                self._content_server.requested(sender, message)
            case Bytes():
                self._content_client.arrived(sender, message, body)

    def bulk_accepted(self, member: MemberId, transport: asyncio.Transport) -> None:
        """Hand a bulk connection to the data plane."""
        self.data_plane.adopt(member, transport)

    # -- what jobs need ----------------------------------------------------------------------------

    async def fetch(self, holder: NodeId, digest: bytes, target: memoryview) -> None:
        """Fill ``target`` with content that another node has.

        Raises:
            PeerError: that node is not connected, or does not give it.
        """
        member = self.mesh.member_of(holder)
        name = self._name_of(holder)
        if member is None:
            raise PeerError(f"{name} is not connected")
        try:
            await self._content_client.fetch(member.id, digest, target)
        except PeerError as error:
            raise PeerError(f"from {name}: {error}") from error

    def _send_content(self, to: MemberId, message: ContentMessage, body: bytes) -> None:
        self.mesh.send(to, self._node.lineage, message, body)

    def _find_content(self, digest: bytes) -> memoryview | None:
        return self._jobs.content(digest)

    def _attempt_finished(self, finished: events.AttemptFinished) -> None:
        self._jobs.note_result(finished)
        self.post(finished)

    def _name_of(self, node: NodeId) -> str:
        if node == self.me.node:
            return self.member.name
        return self._names.get(node, short(node))


def _boot(directory: StateDir, record: ClusterRecord, me: Member) -> Boot:
    """Return what this life starts from: the disk, else the invitation, else nothing but itself."""
    agreement = directory.agreement()
    index, lineage = EntryIndex(0), record.lineage
    config = Config((me,)) if record.founder else None
    contacts = {contact.node: contact for contact in record.contacts}
    if agreement is not None:
        index, lineage, config = (
            agreement.committed_index,
            agreement.lineage,
            agreement.committed,
        )
        known = agreement.committed.members
        if agreement.accepted is not None:
            known += agreement.accepted.config.members
        contacts |= {member.node: member for member in known}
    contacts.pop(me.node, None)
    return Boot(record.cluster, record.name, lineage, index, config, tuple(contacts.values()))


def _now_us() -> int:
    return time.monotonic_ns() // 1000
