"""The daemon's side of a worker: what can be asked of it, and what it tells.

The worker computes in a process of its own (``worker``); ``worker_process`` has its life and
death; this module has the conversation.
"""

import asyncio
import os
import signal
from collections import deque
from typing import Final, Protocol, Self, TypeVar

from greedw_daemon.worker.messages import (
    Applied,
    Apply,
    BucketReady,
    Compute,
    Computed,
    DataProbed,
    DigestState,
    Evaluate,
    Failed,
    Flip,
    JobOpened,
    OpenJob,
    ProbeData,
    Refused,
    Report,
    Request,
    Stage,
    StageReached,
    Started,
    StateDigested,
    clipped,
    decode_report,
    encode,
)
from greedw_daemon.worker.process import Ending, WorkerProcess
from greedw_daemon.worker.shared_memory import SharedMemory, create_memory
from greedw_p2p.errors import DataSetError, GreedwError, MalformedMessageError, WorkerError
from greedw_p2p.ids import Ballot, EntryId, EntryIndex, JobId, StateDigest
from greedw_p2p.jobs.job import DataSetFacts, Gradient, JobLayout, Partial
from greedw_p2p.jobs.spec import JobSpec
from greedw_p2p.limits import TEXT_CHARS_MAX
from greedw_p2p.reduction.layout import BucketLayout

START_TIMEOUT_S: Final = 60.0
"""For the interpreter and its imports: 0.3 s on a desktop, seconds on a board with an SD card."""

Reply = Started | DataProbed | JobOpened | StateDigested
ReplyT = TypeVar("ReplyT", Started, DataProbed, JobOpened, StateDigested)


class WorkerListener(Protocol):
    """Whoever is told what a worker reports. All calls come from the event loop."""

    def on_stage(self, stage: Stage) -> None:
        """The job came a stage further."""
        ...

    def on_bucket_ready(self, index: EntryIndex, ballot: Ballot, bucket: int) -> None:
        """A bucket of ``own`` is final."""
        ...

    def on_computed(
        self, index: EntryIndex, ballot: Ballot, partial: Partial, compute_us: int
    ) -> None:
        """A compute or an evaluation is done."""
        ...

    def on_applied(self, entry_id: EntryId, state: StateDigest) -> None:
        """The other copy of the state is the one after ``entry_id``."""
        ...

    def on_failed(self, reason: str) -> None:
        """The worker has failed and is gone; called at most once, and never after ``stop``.

        Not called if a request was being awaited: that raises the WorkerError instead.
        """
        ...


class Worker:
    """The worker of one job: rules.

    - ``compute``, ``evaluate``, ``apply`` and ``flip`` only send a request. The worker carries
      requests out in order and answers through the listener, so an ``apply`` during a computation
      happens after it.
    - The copies of the state swap when the worker has applied an entry *and* ``flip`` has named
      it; until then ``current_state`` is the copy before it.
    - A failure is reported exactly once: to whoever awaits a request, else by ``on_failed``.
      Requests to a worker that has failed are dropped; the report is on its way or was made.
    - Must be started in the thread that lives as long as the daemon: the kernel kills the worker
      when that thread ends.
    """

    def __init__(self, job: JobId, listener: WorkerListener) -> None:
        """Start the process; ``start`` also waits for it."""
        self._job = job
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._replies: deque[asyncio.Future[Reply]] = deque()
        self._stopping = False
        self._failure: WorkerError | None = None
        self._memory: SharedMemory | None = None
        self._fixed_units = 0.0
        self._current = 0
        self._asked: EntryId | None = None
        self._applies_unanswered = 0
        self._flip_due = False
        self._memory_descriptor = create_memory()
        try:
            self._process = WorkerProcess(
                self._memory_descriptor, on_packet=self._take_packet, on_end=self._take_end
            )
        except OSError:
            os.close(self._memory_descriptor)
            raise

    @classmethod
    async def start(cls, job: JobId, listener: WorkerListener) -> Self:
        """Start the worker of a job, of which no more than the id need be known.

        Raises:
            WorkerError: if the process does not come up.
        """
        try:
            worker = cls(job, listener)
        except OSError as error:
            raise WorkerError(f"worker of job {job} cannot be started: {error.strerror}") from error
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await worker._answer_to(None, Started)
        except TimeoutError as error:
            await worker.stop()
            raise WorkerError(
                f"worker of job {job} did not come up within {START_TIMEOUT_S:.0f} s"
            ) from error
        except asyncio.CancelledError:
            worker.kill()
            raise
        return worker

    # -- what is asked of it -------------------------------------------------------------------

    async def probe_data(self, kind: str, data_dir: str) -> DataSetFacts:
        """Return which data set a folder holds.

        Raises:
            DataSetError: if it cannot be read; the worker goes on.
            WorkerError: if the worker fails or is stopped meanwhile.
        """
        probed = await self._answer_to(ProbeData(kind, data_dir), DataProbed)
        return DataSetFacts(probed.digest, probed.samples, probed.held_out)

    async def prepare(self, spec: JobSpec, *, initialise: bool) -> StateDigest | None:
        """Load the job's data, compile its code, and map its memory.

        Args:
            spec: the complete spec.
            initialise: also write the initial state, as only the founder does.

        Returns:
            The digest of the initial state, or None without ``initialise``.

        Raises:
            DataSetError: if the data is missing, malformed, or not what the spec names; the worker
                goes on.
            WorkerError: if the worker fails or is stopped meanwhile.
        """
        assert self._memory is None, "a worker has one job"
        opened = await self._answer_to(OpenJob(spec, initialise), JobOpened)
        layout = JobLayout(BucketLayout(opened.buckets), opened.state_bytes)
        self._memory = SharedMemory(self._memory_descriptor, layout)
        self._fixed_units = opened.fixed_units
        return opened.state if initialise else None

    def install_state(self, data: bytes | bytearray | memoryview, offset: int = 0) -> None:
        """Write bytes fetched from the founder into the current copy of the state.

        Only before the first computation; ``state_digest`` then tells whether all arrived well.
        """
        memory = self._mapped()
        assert 0 <= offset <= offset + len(data) <= memory.layout.state_bytes
        memory.states[self._current].data[offset : offset + len(data)] = data

    async def state_digest(self) -> StateDigest:
        """Return the digest of the current copy of the state, as the worker computes it.

        Raises:
            WorkerError: if the worker fails or is stopped meanwhile.
        """
        return (await self._answer_to(DigestState(), StateDigested)).state

    def compute(
        self, index: EntryIndex, ballot: Ballot, round_number: int, start: int, count: int
    ) -> None:
        """Compute the gradient of a share into ``own``; on_bucket_ready, then on_computed."""
        self._send(Compute(index, ballot, round_number, start, count))

    def evaluate(self, index: EntryIndex, ballot: Ballot, start: int, count: int) -> None:
        """Score held-out samples with the current state; on_computed."""
        self._send(Evaluate(index, ballot, start, count))

    def apply(self, entry_id: EntryId) -> None:
        """Compute the state after an entry from ``result`` into the other copy; on_applied.

        ``result`` must not be written until then. A later ``apply`` replaces this one, whose
        answer is then left out.
        """
        self._asked = entry_id
        self._applies_unanswered += 1
        self._flip_due = False
        self._send(Apply(entry_id))

    def flip(self, entry_id: EntryId) -> None:
        """Make the state after ``entry_id``, the last one asked for, the current one.

        Raises:
            WorkerError: if another entry, or none, was asked for; nothing has changed then.
        """
        if entry_id != self._asked or self._flip_due:
            held = "none" if self._asked is None or self._flip_due else self._asked.hex()
            raise WorkerError(
                f"worker of job {self._job} cannot flip to the state after entry {entry_id.hex()}:"
                f" the entry applied and not yet flipped to is {held}"
            )
        self._flip_due = True
        self._send(Flip(entry_id))
        self._flip_if_applied()

    # -- its memory ----------------------------------------------------------------------------

    @property
    def layout(self) -> JobLayout:
        """The job's layout; only once it is prepared."""
        return self._mapped().layout

    @property
    def own(self) -> Gradient:
        """The sum of this node's gradients, written by the worker; only once prepared."""
        return self._mapped().own

    @property
    def result(self) -> Gradient:
        """The result of a round, written by the data plane; only once prepared."""
        return self._mapped().result

    def fixed_us_of(self, compute_us: int, count: int) -> int:
        """Return how much of the time of a share of ``count`` samples none of them would have cost.

        What slows a computation down slows all of it: the calibrated ratio holds, not the time.
        """
        return int(compute_us * self._fixed_units / (self._fixed_units + max(count, 1)))

    def current_state(self) -> memoryview:
        """Return the committed copy of the state, to be read; only once prepared."""
        return self._mapped().states[self._current].data.toreadonly()

    # -- its end -------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def stop(self) -> None:
        """End the process and wait until it is reaped, 11 s at most; may be called again.

        Whoever awaits a request gets a WorkerError. If the waiting is cancelled, the process is
        killed. The memory goes when nobody uses it any more.
        """
        self._give_up()
        await self._process.stop()

    def kill(self) -> None:
        """Kill and reap the process without the help of the loop: the last resort, at exit."""
        self._give_up()
        self._process.kill()

    # -- inside --------------------------------------------------------------------------------

    def _give_up(self) -> None:
        self._stopping = True
        self._memory = None
        self._fail_requests(WorkerError(f"worker of job {self._job} was stopped"))

    def _mapped(self) -> SharedMemory:
        assert self._memory is not None, "the job is not prepared, or its worker was stopped"
        return self._memory

    def _send(self, request: Request) -> None:
        if not self._stopping and not self._process.send(encode(request)):
            # Hundreds of requests wait: it has been stuck for as long as that many attempts took.
            self._break("it takes no more requests")

    async def _answer_to(self, request: Request | None, kind: type[ReplyT]) -> ReplyT:
        """Send a request and return its answer; answers come in the order of requests.

        A process that starts owes an answer without being asked.
        """
        if self._stopping or self._process.has_ended:
            raise WorkerError(f"worker of job {self._job} has ended")
        answer: asyncio.Future[Reply] = self._loop.create_future()
        self._replies.append(answer)
        if request is not None:
            self._send(request)
        reply = await answer
        assert isinstance(reply, kind)
        return reply

    def _take_packet(self, packet: bytes) -> None:
        try:
            report = decode_report(packet)
        except MalformedMessageError as error:
            self._break(str(error))
            return
        if not self._stopping:
            self._take(report)

    def _take(self, report: Report) -> None:
        match report:
            case Started() | DataProbed() | JobOpened() | StateDigested():
                answer = self._replies.popleft()
                if not answer.done():  # its waiter may have been cancelled
                    answer.set_result(report)
            case Refused(message=message, hint=hint):
                answer = self._replies.popleft()
                if not answer.done():
                    answer.set_exception(DataSetError(message, hint=hint))
            case StageReached(stage=stage):
                self._listener.on_stage(stage)
            case BucketReady(index=index, ballot=ballot, bucket=bucket):
                self._listener.on_bucket_ready(index, ballot, bucket)
            case Computed(index=index, ballot=ballot, compute_us=compute_us):
                partial = Partial(report.samples, report.loss_sum, report.correct)
                self._listener.on_computed(index, ballot, partial, compute_us)
            case Applied(entry_id=entry_id, state=state):
                self._take_applied(entry_id, state)
            case Failed(message=message, detail=detail):
                self._failure = self._error(f"failed: {message}", detail)

    def _take_applied(self, entry_id: EntryId, state: StateDigest) -> None:
        self._applies_unanswered -= 1
        if self._applies_unanswered == 0:
            self._listener.on_applied(entry_id, state)
            self._flip_if_applied()

    def _flip_if_applied(self) -> None:
        if self._flip_due and self._applies_unanswered == 0:
            self._current = 1 - self._current
            self._asked = None
            self._flip_due = False

    def _break(self, reason: str) -> None:
        """End a worker that does not keep to the rules; reported when it has ended."""
        if self._failure is None:
            self._failure = self._error(f"was killed: {reason}", "")
        self._process.signal(signal.SIGKILL)

    def _take_end(self, ending: Ending) -> None:
        os.close(self._memory_descriptor)
        error = self._failure or self._error(str(ending), ending.last_lines)
        if self._stopping or self._fail_requests(error):
            return
        self._stopping = True
        self._listener.on_failed(f"{error}\n{error.detail}".strip())

    def _fail_requests(self, error: GreedwError) -> bool:
        """Raise an error where requests are awaited; tell whether any was."""
        waiting = [answer for answer in self._replies if not answer.done()]
        self._replies.clear()
        for answer in waiting:
            answer.set_exception(error)
        return bool(waiting)

    def _error(self, what: str, detail: str) -> WorkerError:
        """Return an error whose message and detail fit into one text that travels."""
        message = f"worker of job {self._job} {what}"[: TEXT_CHARS_MAX // 2]
        return WorkerError(message, detail=clipped(detail)[-TEXT_CHARS_MAX // 2 + 1 :])
