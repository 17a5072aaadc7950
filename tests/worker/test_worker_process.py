"""How a worker ends, by its own fault or not, and that its daemon goes on."""

import asyncio
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvloop

from greedw_daemon.worker.host import Worker
from greedw_daemon.worker.main import FAULT_EXIT_CODE, FAULT_VARIABLE
from greedw_p2p.errors import WorkerError
from greedw_p2p.ids import Ballot, EntryIndex, JobId, NodeId
from greedw_p2p.jobs.registry import open_data
from greedw_p2p.jobs.spec import JobSpec
from greedw_p2p.limits import TEXT_CHARS_MAX

if TYPE_CHECKING:
    from tests.worker.conftest import Recorder, RunLoop, StartWorker

BALLOT = Ballot(0, NodeId("0" * 32))
LOST_S = 2.0
"""Within which nothing may be left of a worker whose daemon was killed."""


def compute(worker: Worker, round_number: int = 0) -> None:
    worker.compute(EntryIndex(round_number), BALLOT, round_number, 0, 64)


def freeze(worker: Worker) -> None:
    """Make a worker react to nothing; only SIGKILL can end it then."""
    os.kill(worker.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)


def open_descriptors() -> set[str]:
    # Listing the directory needs a descriptor of its own, which is gone when it is read.
    found: set[str] = set()
    for entry in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{entry} {os.readlink(f'/proc/self/fd/{entry}')}")
        except FileNotFoundError:
            continue
    return found


@contextmanager
def descriptors_left(spare: int) -> Generator[None, None, None]:
    """Let this process open no more than ``spare`` descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(entry.split()[0]) for entry in open_descriptors())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    filler: list[int] = []
    try:
        with suppress(OSError):
            while True:
                filler.append(os.dup(0))
        while len(filler) < spare:
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + spare, hard))
            filler.append(os.dup(0))
        for _ in range(spare):
            os.close(filler.pop())
        yield
    finally:
        for descriptor in filler:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def environment_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(line.split("=", 1) for line in lines if line)


async def lags_until(done: Callable[[], object], tick_s: float = 0.01) -> list[float]:
    """Tick like a heartbeat until ``done``, and return how late each tick was, in seconds."""
    loop = asyncio.get_running_loop()
    lags: list[float] = []
    async with asyncio.timeout(60):
        while not done():
            due = loop.time() + tick_s
            await asyncio.sleep(tick_s)
            lags.append(loop.time() - due)
    return lags


# -- it fails ------------------------------------------------------------------------------------


def test_killed_worker_is_reported_once_with_the_signal(
    start_worker: "StartWorker", run_loop: "RunLoop"
) -> None:
    async def main() -> None:
        async with start_worker() as (worker, recorder):
            os.kill(worker.pid, signal.SIGKILL)
            await recorder.until(lambda: recorder.failures)
            compute(worker)
            with pytest.raises(WorkerError, match="worker of job job-1 has ended"):
                await worker.state_digest()
        assert recorder.failures == ["worker of job job-1 died: signal 9 (SIGKILL: killed)"]

    run_loop(main())


def test_crash_in_native_code_is_reported_with_its_stack(start_worker: "StartWorker") -> None:
    async def main() -> None:
        async with start_worker() as (worker, recorder):
            os.kill(worker.pid, signal.SIGSEGV)
            await recorder.until(lambda: recorder.failures)
        (reason,) = recorder.failures
        assert reason.startswith(
            "worker of job job-1 died: signal 11 (SIGSEGV: segmentation fault)\n"
        )
        assert "greedw_daemon/worker/main.py" in reason

    uvloop.run(main())


def test_exception_in_a_job_is_reported_with_type_text_and_place(
    start_worker: "StartWorker", spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAULT_VARIABLE, "raise:1")

    async def main() -> None:
        async with start_worker() as (worker, recorder):
            await worker.prepare(spec, initialise=True)
            compute(worker, 0)
            compute(worker, 1)
            await recorder.until(lambda: recorder.failures)
        (reason,) = recorder.failures
        assert reason.startswith("worker of job job-1 failed: RuntimeError: ")
        assert "asked for an exception in round 1" in reason
        assert "greedw_daemon/worker/main.py" in reason
        assert [index for index, _ in recorder.computed] == [0]
        assert recorder.buckets[-1] == (1, 0)

    uvloop.run(main())


def test_end_without_a_word_is_reported_with_status_and_last_lines(
    start_worker: "StartWorker", spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAULT_VARIABLE, "exit:0")

    async def main() -> None:
        async with start_worker() as (worker, recorder):
            await worker.prepare(spec, initialise=True)
            compute(worker)
            await recorder.until(lambda: recorder.failures)
        (reason,) = recorder.failures
        how, last = reason.splitlines()
        assert how == f"worker of job job-1 ended with exit status {FAULT_EXIT_CODE}"
        assert last == f"{FAULT_VARIABLE} asked for the end in round 0"

    uvloop.run(main())


def test_death_during_a_request_is_raised_there_and_nowhere_else(
    start_worker: "StartWorker", run_loop: "RunLoop", spec: JobSpec
) -> None:
    async def main() -> None:
        async with start_worker() as (worker, recorder):
            preparing = asyncio.ensure_future(worker.prepare(spec, initialise=True))
            await recorder.until(lambda: recorder.stages)
            os.kill(worker.pid, signal.SIGKILL)
            with pytest.raises(WorkerError, match=r"job-1 died: signal 9 \(SIGKILL: killed\)"):
                await preparing
        assert recorder.failures == []

    run_loop(main())


def test_python_that_does_not_come_up_is_a_worker_error_with_its_last_lines(
    start_worker: "StartWorker", run_loop: "RunLoop", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")

    async def main() -> None:
        with pytest.raises(WorkerError, match="ended with exit status 1") as caught:
            async with start_worker():
                pass
        assert "encodings" in caught.value.detail
        assert not has_children()

    run_loop(main())


def test_worker_that_takes_no_requests_any_more_is_killed_and_reported(
    start_worker: "StartWorker", spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAULT_VARIABLE, "hang:60")

    async def main() -> None:
        async with start_worker() as (worker, recorder):
            await worker.prepare(spec, initialise=True)
            for number in range(10_000):
                compute(worker, number % 100)
            await recorder.until(lambda: recorder.failures)
        assert recorder.failures == ["worker of job job-1 was killed: it takes no more requests"]

    uvloop.run(main())


def test_no_descriptors_left_is_a_worker_error_and_leaks_none(start_worker: "StartWorker") -> None:
    async def main() -> None:
        before = open_descriptors()
        for spare in range(7):  # each of the first steps fails once
            with (
                descriptors_left(spare),
                pytest.raises(WorkerError, match="cannot be started: Too many open files"),
            ):
                async with start_worker():
                    pass
            assert open_descriptors() == before
        assert not has_children()

    uvloop.run(main())


def test_a_flood_on_stderr_neither_blocks_the_worker_nor_is_kept_whole(
    start_worker: "StartWorker", monkeypatch: pytest.MonkeyPatch
) -> None:
    # Hundreds of KiB, several times what a pipe holds: without a reader it would never come up.
    monkeypatch.setenv("PYTHONVERBOSE", "1")

    async def main() -> None:
        async with start_worker() as (worker, recorder):
            os.kill(worker.pid, signal.SIGKILL)
            await recorder.until(lambda: recorder.failures)
        (reason,) = recorder.failures
        assert len(reason) <= TEXT_CHARS_MAX
        assert 2 <= len(reason.splitlines()) <= 21

    uvloop.run(main())


# -- its daemon goes on --------------------------------------------------------------------------


def assert_heartbeats_went_on(lags: list[float], ticks_min: int) -> None:
    late = sorted(lags)[int(0.95 * len(lags))]
    # The most of the ticks, not all: other processes on the host take their share of it too.
    assert len(lags) >= ticks_min
    assert late < 0.05, f"heartbeats came late: {late:.3f} s"
    assert max(lags) < 1.0


def test_heartbeats_go_on_while_a_worker_holds_its_interpreter(
    start_worker: "StartWorker",
    run_loop: "RunLoop",
    spec: JobSpec,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(FAULT_VARIABLE, "hang:1")

    async def main() -> None:
        async with start_worker() as (worker, recorder):
            await worker.prepare(spec, initialise=True)
            compute(worker)
            assert_heartbeats_went_on(await lags_until(lambda: recorder.computed), 30)
            assert recorder.compute_us[0] >= 1_000_000

    run_loop(main())


def test_heartbeats_go_on_while_a_worker_compiles(
    start_worker: "StartWorker", spec: JobSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))  # nothing compiled is found there

    async def main() -> None:
        async with start_worker() as (worker, _):
            preparing = asyncio.ensure_future(worker.prepare(spec, initialise=True))
            assert_heartbeats_went_on(await lags_until(preparing.done), 20)
            assert preparing.result()

    uvloop.run(main())


def test_worker_outlives_the_signals_that_ask_its_daemon_to_end(
    start_worker: "StartWorker",
) -> None:
    async def main() -> None:
        async with start_worker() as (worker, recorder):
            assert os.getsid(worker.pid) == worker.pid
            os.kill(worker.pid, signal.SIGINT)
            os.kill(worker.pid, signal.SIGTERM)
            assert await worker.probe_data("mnist-2nn", "") == open_data("mnist-2nn", "")
            assert recorder.failures == []

    uvloop.run(main())


def test_worker_takes_no_module_from_the_daemons_directory_and_no_systemd_socket(
    start_worker: "StartWorker", monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")

    async def main() -> None:
        async with start_worker() as (worker, _):
            environment = environment_of(worker.pid)
        assert "NOTIFY_SOCKET" not in environment
        assert environment["NUMBA_NUM_THREADS"] == "1"

    uvloop.run(main())


# -- its daemon ends it --------------------------------------------------------------------------


def test_stop_leaves_no_process_no_descriptor_and_reports_no_failure(
    start_worker: "StartWorker", run_loop: "RunLoop", spec: JobSpec
) -> None:
    async def main() -> None:
        before = open_descriptors()
        for _ in range(2):
            async with start_worker() as (worker, recorder):
                await worker.prepare(spec, initialise=True)
                compute(worker)
                await worker.stop()
                await worker.stop()
                compute(worker)
            assert recorder.failures == []
            del worker
            assert not has_children()
        assert open_descriptors() == before

    run_loop(main())


def test_stop_ends_a_worker_at_once_in_the_middle_of_its_computation(
    start_worker: "StartWorker", spec: JobSpec
) -> None:
    async def main() -> None:
        async with start_worker() as (worker, recorder):
            await worker.prepare(spec, initialise=True)
            for _ in range(100):
                worker.compute(EntryIndex(0), BALLOT, 0, 0, spec.samples)
            await recorder.until(lambda: recorder.computed)
            began = time.monotonic()
            await worker.stop()
            # Before SIGKILL would have been sent.
            assert time.monotonic() - began < 1.0
        assert len(recorder.computed) < 100

    uvloop.run(main())


def test_stop_ends_a_worker_that_reacts_to_nothing(start_worker: "StartWorker") -> None:
    async def main() -> None:
        async with start_worker() as (worker, recorder):
            freeze(worker)
            await worker.stop()
            assert recorder.failures == []
            assert not has_children()

    uvloop.run(main())


def test_stop_that_is_cancelled_kills_and_reaps_the_worker(
    start_worker: "StartWorker", run_loop: "RunLoop"
) -> None:
    async def main() -> None:
        async with start_worker() as (worker, recorder):
            freeze(worker)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await worker.stop()
            assert not has_children()
            assert recorder.failures == []

    run_loop(main())


def test_a_request_that_is_awaited_when_the_worker_is_stopped_raises(
    start_worker: "StartWorker", spec: JobSpec
) -> None:
    async def main() -> None:
        async with start_worker() as (worker, recorder):
            preparing = asyncio.ensure_future(worker.prepare(spec, initialise=True))
            await recorder.until(lambda: recorder.stages)
            await worker.stop()
            with pytest.raises(WorkerError, match="worker of job job-1 was stopped"):
                await preparing

    uvloop.run(main())


def test_kill_needs_no_loop(recorder: "Recorder", run_loop: "RunLoop") -> None:
    workers: list[Worker] = []

    async def main() -> None:
        workers.append(await Worker.start(JobId("job-1"), recorder))

    run_loop(main())
    assert has_children()
    workers[0].kill()
    workers[0].kill()
    assert not has_children()
    assert recorder.failures == []


# -- its daemon dies -----------------------------------------------------------------------------

DAEMON = """
import asyncio, sys
import uvloop
from greedw_daemon.worker.host import Worker
from greedw_p2p.ids import Ballot, EntryIndex, JobId, NodeId
from greedw_p2p.jobs.registry import open_data
from greedw_p2p.jobs.registry import open_data
from greedw_p2p.jobs.spec import JobSpec

class Printer:
    def on_stage(self, stage): pass
    def on_bucket_ready(self, index, ballot, bucket): print("computing", flush=True)
    def on_computed(self, index, ballot, partial, compute_us): pass
    def on_applied(self, entry_id, state): pass
    def on_failed(self, reason): print("failed", reason, flush=True)

async def main(computes):
    worker = await Worker.start(JobId("job-1"), Printer())
    print(worker.pid, flush=True)
    if computes:
        facts = open_data("mnist-2nn", "")
        sizes = facts.digest, facts.samples, facts.held_out
        spec = JobSpec(JobId("job-1"), "mnist-2nn", "", *sizes, 1, 64, 0.1, 0.9, 3)
        await worker.prepare(spec, initialise=True)
        worker.compute(EntryIndex(0), Ballot(0, NodeId("0" * 32)), 0, 0, 64)
    else:
        print("idle", flush=True)
    await asyncio.Event().wait()

uvloop.run(main(sys.argv[1] == "computes"))
"""


@pytest.mark.parametrize("does", ["idles", "computes", "reacts to nothing"])
def test_no_worker_outlives_a_killed_daemon(does: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FAULT_VARIABLE, "hang:60")  # a long computation
    program = [sys.executable, "-c", DAEMON, does]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        pid = int(daemon.stdout.readline())
        worker = os.pidfd_open(pid)
        try:
            assert daemon.stdout.readline().strip() == (
                "computing" if does == "computes" else "idle"
            )
            if does == "reacts to nothing":
                os.kill(pid, signal.SIGSTOP)
            daemon.kill()
            poller = select.poll()
            poller.register(worker, select.POLLIN)
            assert poller.poll(LOST_S * 1000), f"the worker lived {LOST_S} s after its daemon"
        finally:
            os.close(worker)
