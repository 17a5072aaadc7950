"""The jobs on this node: one is running, one may be about to, and those before are ending."""

import asyncio
import os
from collections.abc import Callable
from typing import Any, Final

import msgspec

from greedw_daemon.jobs.hosted import HostedJob, JobSurroundings
from greedw_daemon.jobs.order import JobOrder
from greedw_daemon.log_setup import get_logger
from greedw_daemon.tasks import TaskSet
from greedw_p2p.errors import DaemonError, DataSetError, JobError, WorkerError
from greedw_p2p.ids import EntryId, JobId, StateDigest
from greedw_p2p.jobs.spec import JobSpec
from greedw_p2p.node.effects import ApplyResult, BeginAttempt, FetchResult, LoadJob
from greedw_p2p.node.events import AttemptFinished, JobRefused, WorkerFailed
from greedw_p2p.node.status import JobStatus

REFUSED: Final = 5
UNFIT: Final = 6
HOSTED_MAX: Final = 4
"""Workers at a time."""

log = get_logger()


class JobHosts:
    """Keeps the jobs that have a worker here, by id."""

    def __init__(self, around: JobSurroundings) -> None:
        self._around = around
        self._jobs: dict[JobId, HostedJob] = {}
        self._orders: dict[JobId, JobOrder] = {}
        self._loading: dict[JobId, asyncio.Task[None]] = {}
        self._tasks = TaskSet()

    # -- beginning and end ------------------------------------------------------------------------

    async def found(self, order: JobOrder) -> tuple[JobSpec, StateDigest]:
        """Prepare a job that a user submits here: worker, data, code, initial state.

        Raises:
            DaemonError: it cannot be done; nothing of it is left then.
        """
        job = JobId(f"{order.kind}-{os.urandom(3).hex()}")
        if len(self._jobs) >= HOSTED_MAX:
            raise DaemonError(
                "too many jobs are starting or ending on this node",
                hint="try again in a few seconds; greedw jobs lists them",
                exit_code=REFUSED,
            )
        hosted = self._jobs[job] = HostedJob(job, self._around)
        self._orders[job] = order
        try:
            spec = order.spec(job, await hosted.found(order.kind, order.data_dir))
            return spec, await hosted.initialise(spec)
        except BaseException as error:
            await self.discard(job)
            if isinstance(error, DataSetError):
                raise DaemonError(str(error), hint=error.hint, exit_code=UNFIT) from error
            if isinstance(error, WorkerError):
                raise DaemonError(str(error), hint=error.detail) from error
            if isinstance(error, JobError):
                raise DaemonError(str(error)) from error
            raise

    def load(self, order: LoadJob) -> None:
        """Prepare a job of another node; a job that is ready says so again."""
        job = order.spec.id
        known = self._jobs.get(job)
        if known is not None:
            known.tell_loaded()
            return
        if len(self._jobs) >= HOSTED_MAX:
            self._around.post(JobRefused(job, "too many jobs are starting or ending here"))
            return
        hosted = self._jobs[job] = HostedJob(job, self._around)
        self._loading[job] = self._tasks.start(self._load(hosted, order), f"load {job}")

    def unload(self, job: JobId) -> None:
        """End a job's worker, in the background."""
        if job in self._jobs:
            self._tasks.start(self.discard(job), f"unload {job}")

    async def discard(self, job: JobId) -> None:
        """End a job's worker and wait until it is gone."""
        loading = self._loading.pop(job, None)
        if loading is not None:
            loading.cancel()
            await asyncio.wait((loading,))
        hosted = self._jobs.get(job)
        if hosted is not None:
            await hosted.stop()
        self._jobs.pop(job, None)
        self._orders.pop(job, None)

    async def close(self) -> None:
        """End all workers."""
        await self._tasks.close()
        await asyncio.gather(*(hosted.stop() for hosted in self._jobs.values()))
        self._jobs.clear()

    # -- attempts ----------------------------------------------------------------------------------

    def begin(self, order: BeginAttempt) -> None:
        """Take part in an attempt."""
        self._with(order.spec.id, lambda hosted: hosted.begin(order))

    def fetch_result(self, order: FetchResult) -> None:
        """Fetch a result's bytes for the job that runs."""
        for hosted in self._ready():
            self._tasks.start(hosted.fetch_result(order), "fetch result")

    def apply(self, order: ApplyResult) -> None:
        """Compute the state after an entry."""
        self._with(order.spec.id, lambda hosted: hosted.apply(order))

    def flip(self, entry_id: EntryId) -> None:
        """Make the state after an entry the current one."""
        for hosted in self._ready():
            hosted.flip(entry_id)

    def note_result(self, finished: AttemptFinished) -> None:
        """Remember that an attempt's result is whole."""
        for hosted in self._ready():
            hosted.note_result(finished)

    def content(self, digest: bytes) -> memoryview | None:
        """Return bytes that a job here has, by their digest."""
        found = (hosted.content(digest) for hosted in self._jobs.values())
        return next((content for content in found if content is not None), None)

    # -- for people --------------------------------------------------------------------------------

    def preparing(self, listed: set[str]) -> list[dict[str, Any]]:
        """Describe the jobs that only this process knows of yet."""
        return [
            _preparing(hosted, self._orders[hosted.id])
            for hosted in self._jobs.values()
            if hosted.id not in listed and hosted.id in self._orders
        ]

    # -- inside ------------------------------------------------------------------------------------

    async def _load(self, hosted: HostedJob, order: LoadJob) -> None:
        loaded = await hosted.load(order)
        self._loading.pop(hosted.id, None)
        if not loaded:
            self._jobs.pop(hosted.id, None)

    def _ready(self) -> list[HostedJob]:
        """Return the jobs whose workers can go on: one in practice, since one runs at a time."""
        return [hosted for hosted in self._jobs.values() if hosted.is_ready]

    def _with(self, job: JobId, work: Callable[[HostedJob], None]) -> None:
        hosted = self._jobs.get(job)
        if hosted is None:
            # For instance a user gave up a job that was entering the log at that moment. The node
            # must hear of it, or all would wait for this node's share.
            log.error("job has no worker here", job=job)
            self._around.post(WorkerFailed(job, "its worker was ended before the job began"))
            return
        work(hosted)


def _preparing(hosted: HostedJob, order: JobOrder) -> dict[str, Any]:
    spec = hosted.spec
    status = JobStatus(
        id=hosted.id,
        kind=order.kind,
        state="preparing",
        round=0,
        rounds=0 if spec is None else spec.rounds,
        epochs=order.epochs or 0,
        batch=order.batch or 0,
        samples=0 if spec is None else spec.samples,
        held_out=0 if spec is None else spec.held_out,
        loss=None,
        accuracy=None,
        accuracy_round=0,
        digests={},
        reason=hosted.stage,
    )
    described: dict[str, Any] = msgspec.to_builtins(status)
    return described
