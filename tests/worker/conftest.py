"""A listener that a test can wait on, workers that end with the test, both kinds of loop."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import uvloop

from greedw_daemon.worker.host import Worker
from greedw_daemon.worker.messages import Stage
from greedw_p2p.ids import Ballot, EntryId, EntryIndex, JobId, StateDigest
from greedw_p2p.jobs.job import Partial
from greedw_p2p.jobs.registry import open_data
from greedw_p2p.jobs.spec import JobSpec

JOB = JobId("job-1")
WAIT_S = 60.0


class Recorder:
    """A WorkerListener that keeps what it is told, and lets a test wait for it."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self.buckets: list[tuple[EntryIndex, int]] = []
        self.computed: list[tuple[EntryIndex, Partial]] = []
        self.compute_us: list[int] = []
        self.applied: list[tuple[EntryId, StateDigest]] = []
        self.failures: list[str] = []
        self._news = asyncio.Event()

    def on_stage(self, stage: Stage) -> None:
        self.stages.append(stage)
        self._news.set()

    def on_bucket_ready(self, index: EntryIndex, ballot: Ballot, bucket: int) -> None:
        self.buckets.append((index, bucket))
        self._news.set()

    def on_computed(
        self, index: EntryIndex, ballot: Ballot, partial: Partial, compute_us: int
    ) -> None:
        self.computed.append((index, partial))
        self.compute_us.append(compute_us)
        self._news.set()

    def on_applied(self, entry_id: EntryId, state: StateDigest) -> None:
        self.applied.append((entry_id, state))
        self._news.set()

    def on_failed(self, reason: str) -> None:
        self.failures.append(reason)
        self._news.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._news.clear()
                await self._news.wait()


RunLoop = Callable[[Coroutine[Any, Any, None]], None]
StartWorker = Callable[[], AbstractAsyncContextManager[tuple[Worker, Recorder]]]


@pytest.fixture(params=["uvloop", "asyncio"])
def run_loop(request: pytest.FixtureRequest) -> RunLoop:
    """Run a coroutine as the daemon does, and on the loop that the standard library has."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main)

    return run


@pytest.fixture
def start_worker() -> StartWorker:
    return _running_worker


@pytest.fixture(scope="session")
def spec() -> JobSpec:
    facts = open_data("mnist-2nn", "")
    return JobSpec(
        id=JOB,
        kind="mnist-2nn",
        data_dir="",
        data_digest=facts.digest,
        samples=facts.samples,
        held_out=facts.held_out,
        epochs=1,
        batch=64,
        learning_rate=0.1,
        momentum=0.9,
        seed=3,
    )


@asynccontextmanager
async def _running_worker() -> AsyncGenerator[tuple[Worker, Recorder], None]:
    recorder = Recorder()
    worker = await Worker.start(JOB, recorder)
    try:
        yield worker, recorder
    finally:
        await worker.stop()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()
