"""One job on this node: its worker, its memory, and its part in the attempts of the log.

The node says what to do (effects), the worker and the data plane report, and this file routes
between the three. What the node must know goes back as events.

A share that was computed for one attempt is used again by a later attempt of the same entry that
gives this node the same samples: the sums are in ``own``, which nobody else writes.
"""

from dataclasses import dataclass, field
from typing import Final, Protocol

import xxhash

from greedw_daemon.data_plane.order import AttemptOrder, Regions, bytes_of, whole_vector
from greedw_daemon.data_plane.plane import DataPlane
from greedw_daemon.worker.host import Worker
from greedw_daemon.worker.messages import Stage
from greedw_p2p.errors import DataSetError, PeerError, WorkerError
from greedw_p2p.ids import (
    NO_STATE,
    Ballot,
    ContentDigest,
    EntryId,
    EntryIndex,
    JobId,
    LineageId,
    MemberId,
    NodeId,
    StateDigest,
)
from greedw_p2p.jobs.job import DataSetFacts, Partial
from greedw_p2p.jobs.spec import JobSpec
from greedw_p2p.links.cell import LinkCell
from greedw_p2p.log.entry import EntryKind, RoundOutcome
from greedw_p2p.node.effects import ApplyResult, BeginAttempt, FetchResult, LoadJob
from greedw_p2p.node.events import (
    AttemptBroken,
    AttemptFinished,
    Event,
    JobLoaded,
    JobRefused,
    StateApplied,
    WorkerFailed,
)
from greedw_p2p.reduction.layout import BucketLayout
from greedw_p2p.view import RoundReport
from greedw_p2p.wire.messages import Contribution

NO_BUCKETS: Final = BucketLayout(())
"""Nothing is summed in an evaluation but its figures."""


class JobSurroundings(Protocol):
    """What a job needs of the node around it."""

    me: MemberId
    data_plane: DataPlane

    def post(self, event: Event) -> None:
        """Tell the node that something happened."""
        ...

    async def fetch(self, holder: NodeId, digest: bytes, target: memoryview) -> None:
        """Fill ``target`` with content that another node has; raises PeerError."""
        ...


@dataclass(slots=True)
class _Share:
    """A computation of this node's samples in one entry, and how far it has come."""

    key: tuple[LineageId, EntryIndex, EntryKind, int, int]
    asked: tuple[EntryIndex, Ballot]
    buckets: list[int] = field(default_factory=list[int])
    computed: tuple[Partial, int] | None = None


@dataclass(frozen=True, slots=True)
class _Running:
    """The attempt that takes what the share gives."""

    index: EntryIndex
    ballot: Ballot
    start: int
    count: int
    links: tuple[LinkCell, ...]


class HostedJob:
    """One job; implements what its worker reports to."""

    def __init__(self, job: JobId, around: JobSurroundings) -> None:
        self.id = job
        self.spec: JobSpec | None = None
        self.stage = "starting the worker"
        self.state = NO_STATE
        """Digest of the committed copy of the state; empty until it is known."""

        self._around = around
        self._worker: Worker | None = None
        self._is_ready = False
        self._share: _Share | None = None
        self._running: _Running | None = None
        self._result: ContentDigest | None = None
        self._applied: tuple[EntryId, StateDigest] | None = None
        self._asked: EntryId | None = None
        self._flip_due: EntryId | None = None

    @property
    def is_ready(self) -> bool:
        """Tell whether the worker has the job and can go on."""
        return self._is_ready

    # -- its beginning and its end -------------------------------------------------------------

    async def found(self, kind: str, data_dir: str) -> DataSetFacts:
        """Start the worker for a job that a user submits here, and look at its data.

        Raises:
            WorkerError, DataSetError, JobError: it cannot be done.
        """
        self._worker = await Worker.start(self.id, self)
        return await self._worker.probe_data(kind, data_dir)

    async def initialise(self, spec: JobSpec) -> StateDigest:
        """Load and compile the submitted job and make its initial state; return the digest.

        Raises:
            WorkerError, DataSetError: it cannot be done.
        """
        assert self._worker is not None
        self.spec = spec
        digest = await self._worker.prepare(spec, initialise=True)
        assert digest is not None
        self.state = digest
        self._is_ready = True
        return digest

    async def load(self, order: LoadJob) -> bool:
        """Start the worker for a job of another node, fetch its initial state, and tell.

        Returns False if it cannot be done; the node was told why, and the worker is gone.
        """
        self.spec = order.spec
        try:
            self._worker = await Worker.start(self.id, self)
            await self._worker.prepare(order.spec, initialise=False)
            await self._fetch_state(self._worker, order)
        except DataSetError as error:
            await self._refuse(f"{error}. {error.hint}" if error.hint else str(error))
        except WorkerError as error:
            await self._refuse(f"{error}\n{error.detail}".strip())
        except PeerError as error:
            await self._refuse(f"its initial state could not be fetched: {error}")
        else:
            self._is_ready = True
            self.tell_loaded()
            return True
        return False

    def tell_loaded(self) -> None:
        """Tell the node again that the job is ready, if it is."""
        if self._is_ready:
            assert self.spec is not None
            self._around.post(JobLoaded(self.spec, self.state))

    async def stop(self) -> None:
        """End the worker and forget its memory."""
        self._is_ready = False
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop()

    # -- what the node asks ---------------------------------------------------------------------

    def begin(self, order: BeginAttempt) -> None:
        """Take part in an attempt: compute this node's share, or use the one that is there."""
        if self._worker is None or not self._is_ready:
            return  # the worker has failed: the node knows, and ends the job
        worker, me = self._worker, self._around.me
        start, count = order.plan.units_of(me.node)
        is_round = order.kind is EntryKind.ROUND
        self._running = _Running(order.index, order.ballot, start, count, order.links)
        layout = worker.layout.gradient if is_round else NO_BUCKETS
        self._around.data_plane.begin(
            _attempt_order(order, me, layout), Regions(worker.own, worker.result)
        )
        key = (order.lineage, order.index, order.kind, order.start + start, count)
        if self._share is not None and self._share.key == key:
            self._replay(self._share)
            return
        self._share = _Share(key, (order.index, order.ballot))
        if is_round:
            worker.compute(
                order.index, order.ballot, order.round_number, order.start + start, count
            )
        else:
            worker.evaluate(order.index, order.ballot, order.start + start, count)

    def cancel(self, index: EntryIndex, ballot: Ballot) -> None:
        """Give an attempt up; its share stays for the next one."""
        self._around.data_plane.cancel(index, ballot)

    def note_result(self, finished: AttemptFinished) -> None:
        """Remember whose bytes are in the result region now."""
        if self._running is not None and self._running.index == finished.index:
            self._result = finished.digest

    async def fetch_result(self, order: FetchResult) -> None:
        """Fetch a result that no attempt of this node will bring, and tell."""
        if self._worker is None or not self._is_ready:
            return
        elements = self._worker.layout.gradient.elements
        target = bytes_of(whole_vector(self._worker.result, elements))
        self._result = None
        try:
            await self._around.fetch(order.holder, order.digest, target)
            _check_digest(xxhash.xxh3_128(target).digest(), order.digest)
        except PeerError as error:
            self._around.post(
                AttemptBroken(
                    order.index, order.ballot, order.holder, "fetching the result", str(error)
                )
            )
            return
        self._result = order.digest
        # The figures of a fetched result come with its entry, not with its bytes.
        self._around.post(
            AttemptFinished(order.index, order.ballot, order.digest, RoundOutcome(0, 0.0, 0))
        )

    def apply(self, order: ApplyResult) -> None:
        """Compute the state after an entry into the second copy."""
        if self._worker is None or not self._is_ready:
            return
        if self._result != order.digest:
            self._fail("the bytes to be applied are not those of the accepted result")
            return
        self._asked, self._applied, self._flip_due = order.entry_id, None, None
        self._worker.apply(order.entry_id)

    def flip(self, entry_id: EntryId) -> None:
        """Make the second copy the state, now or as soon as it is computed."""
        if self._worker is None or not self._is_ready or self._asked != entry_id:
            return
        try:
            self._worker.flip(entry_id)
        except WorkerError as error:
            self._fail(str(error))
            return
        self._flip_due = entry_id
        self._flip_if_applied()

    def content(self, digest: bytes) -> memoryview | None:
        """Return the bytes with this digest, if this job has them: its state or its result."""
        if self._worker is None or not self._is_ready:
            return None
        if digest == self.state:
            return self._worker.current_state()
        if digest == self._result:
            return self._intact_result(self._worker, digest)
        return None

    # -- what the worker reports ----------------------------------------------------------------

    def on_stage(self, stage: Stage) -> None:
        """Keep the stage for people."""
        self.stage = stage.value

    def on_bucket_ready(self, index: EntryIndex, ballot: Ballot, bucket: int) -> None:
        """Pass a final bucket on to the attempt that uses the share."""
        share, running = self._share, self._running
        if share is not None and running is not None and share.asked == (index, ballot):
            share.buckets.append(bucket)
            self._around.data_plane.own_bucket_ready(running.index, running.ballot, bucket)

    def on_computed(
        self, index: EntryIndex, ballot: Ballot, partial: Partial, compute_us: int
    ) -> None:
        """Pass the figures of the whole share on."""
        share = self._share
        if share is not None and share.asked == (index, ballot):
            share.computed = (partial, compute_us)
            self._finish_own(partial, compute_us)

    def on_applied(self, entry_id: EntryId, state: StateDigest) -> None:
        """Pass the digest of the state after an entry on."""
        self._applied = (entry_id, state)
        self._flip_if_applied()
        self._around.post(StateApplied(entry_id, state))

    def on_failed(self, reason: str) -> None:
        """Tell that the worker is gone."""
        self._is_ready = False
        self._around.post(WorkerFailed(self.id, reason))

    # -- inside ---------------------------------------------------------------------------------

    def _intact_result(self, worker: Worker, digest: bytes) -> memoryview | None:
        """Return the last result, unless sums of the next attempt have begun to replace it.

        At the root it stays whole until every other node takes part in the next attempt: a node
        that still lacks the result can fetch it there.
        """
        elements = worker.layout.gradient.elements
        result = bytes_of(whole_vector(worker.result, elements)).toreadonly()
        return result if xxhash.xxh3_128(result).digest() == digest else None

    def _replay(self, share: _Share) -> None:
        running = self._running
        assert running is not None
        for bucket in share.buckets:
            self._around.data_plane.own_bucket_ready(running.index, running.ballot, bucket)
        if share.computed is not None:
            self._finish_own(*share.computed)

    def _finish_own(self, partial: Partial, compute_us: int) -> None:
        running, plane, me = self._running, self._around.data_plane, self._around.me
        worker = self._worker
        assert running is not None
        assert worker is not None, "a worker that was stopped reports nothing"
        plane.own_finished(
            running.index,
            running.ballot,
            Contribution(me, running.start, running.count),
            RoundOutcome(partial.samples, partial.loss_sum, partial.correct),
            RoundReport(
                node=me.node,
                units=running.count,
                compute_us=compute_us,
                fixed_us=worker.fixed_us_of(compute_us, running.count),
                wait_us=plane.last_wait_us(),
                transfer_us=plane.last_transfer_us(),
                sent_bytes=plane.sent_bytes,
            ),
            running.links,
        )

    def _flip_if_applied(self) -> None:
        if self._applied is not None and self._applied[0] == self._flip_due:
            self.state = self._applied[1]
            self._flip_due = None

    async def _fetch_state(self, worker: Worker, order: LoadJob) -> None:
        self.stage = "fetching the initial state"
        data = bytearray(worker.layout.state_bytes)
        await self._around.fetch(order.holder, order.state, memoryview(data))
        worker.install_state(data)
        _check_digest(await worker.state_digest(), order.state)
        self.state = order.state

    async def _refuse(self, reason: str) -> None:
        await self.stop()
        self._around.post(JobRefused(self.id, reason))

    def _fail(self, reason: str) -> None:
        self._is_ready = False
        self._around.post(WorkerFailed(self.id, reason))


def _check_digest(found: bytes, wanted: bytes) -> None:
    if found != wanted:
        raise PeerError(f"the bytes that came have digest {found.hex()}, not {wanted.hex()}")


def _attempt_order(order: BeginAttempt, me: MemberId, layout: BucketLayout) -> AttemptOrder:
    """Return this node's place in the attempt's tree."""
    plan = order.plan
    return AttemptOrder(
        lineage=order.lineage,
        index=order.index,
        ballot=order.ballot,
        tree=0,
        view_digest=plan.view_digest,
        plan_digest=plan.digest(),
        me=me,
        parent=plan.tree.parent_of(me.node),
        children=plan.tree.children_of(me.node),
        layout=layout,
        chunk_bytes=plan.chunk_bytes,
        window_chunks=plan.window_chunks,
        send_buffer_bytes=plan.send_buffer_bytes,
        divisor=order.stop - order.start,
        total_units=order.stop - order.start,
        participants=order.participants,
    )
