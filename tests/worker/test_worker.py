"""A worker as a real process: what it computes, and whose memory holds it."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
import uvloop
import xxhash
from threadpoolctl import threadpool_limits

from greedw_daemon.worker.main import JobRunner
from greedw_daemon.worker.messages import Apply, Flip, OpenJob, Stage
from greedw_daemon.worker.shared_memory import create_memory
from greedw_p2p.errors import DataSetError, WorkerError
from greedw_p2p.ids import Ballot, ContentDigest, EntryId, EntryIndex, NodeId
from greedw_p2p.jobs.job import Gradient, Job, Partial, StateBytes
from greedw_p2p.jobs.registry import layout_of, open_data, open_job
from greedw_p2p.jobs.spec import JobSpec
from greedw_p2p.kernels.arrays import aligned_floats

if TYPE_CHECKING:
    from tests.worker.conftest import StartWorker

BALLOT = Ballot(0, NodeId("0" * 32))
FIRST, SECOND = EntryId(b"1" * 16), EntryId(b"2" * 16)


@pytest.fixture(scope="module")
def job(spec: JobSpec) -> Iterator[Job]:
    # A BLAS of several threads sums in another order than the worker's one.
    with threadpool_limits(1):
        yield open_job(spec)


def new_state(job: Job) -> StateBytes:
    return aligned_floats(job.layout.state_bytes // 4).view(np.uint8)


def initial_state_of(job: Job) -> StateBytes:
    state = new_state(job)
    job.initial_state(state)
    return state


def gradient_of(job: Job, state: StateBytes, *share: int) -> tuple[Gradient, Partial]:
    gradient = aligned_floats(job.layout.gradient.elements)
    round_number, start, count = share
    partial = job.compute(
        state, round_number, start, count, gradient=gradient, ready=lambda _: None
    )
    return gradient, partial


def digest_of(state: StateBytes | memoryview) -> bytes:
    return xxhash.xxh3_128(bytes(state)).digest()


def test_worker_tells_which_data_it_has_and_comes_to_readiness_in_stages(
    start_worker: "StartWorker", spec: JobSpec
) -> None:
    async def main() -> None:
        async with start_worker() as (worker, recorder):
            facts = await worker.probe_data("mnist-2nn", "")
            assert facts == open_data("mnist-2nn", "")
            recorder.stages.clear()
            assert await worker.prepare(spec, initialise=False) is None
            assert recorder.stages == [Stage.LOADING, Stage.COMPILING, Stage.READY]
            assert worker.layout == layout_of(spec)
            assert worker.own.size == worker.result.size == worker.layout.gradient.elements

    uvloop.run(main())


def test_initial_state_is_the_founders_in_bytes_and_digest(
    start_worker: "StartWorker", spec: JobSpec, job: Job
) -> None:
    async def main() -> None:
        async with start_worker() as (worker, _):
            digest = await worker.prepare(spec, initialise=True)
            expected = initial_state_of(job)
            assert worker.current_state() == expected.data
            assert digest == digest_of(expected) == await worker.state_digest()

    uvloop.run(main())


def test_fetched_state_is_installed_piece_by_piece_and_digested(
    start_worker: "StartWorker", spec: JobSpec, job: Job
) -> None:
    async def main() -> None:
        async with start_worker() as (worker, _):
            await worker.prepare(spec, initialise=False)
            expected = initial_state_of(job)
            step = 65_536
            for offset in range(0, len(expected), step):
                worker.install_state(expected.data[offset : offset + step], offset)
            assert await worker.state_digest() == digest_of(expected)
            assert worker.current_state() == expected.data

    uvloop.run(main())


def test_gradient_in_shared_memory_is_the_one_computed_in_process(
    start_worker: "StartWorker", spec: JobSpec, job: Job
) -> None:
    async def main() -> None:
        async with start_worker() as (worker, recorder):
            await worker.prepare(spec, initialise=True)
            worker.compute(EntryIndex(7), BALLOT, 1, 64, 40)
            await recorder.until(lambda: recorder.computed)
            expected, partial = gradient_of(job, initial_state_of(job), 1, 64, 40)
            assert worker.own.tobytes() == expected.tobytes()
            assert recorder.computed == [(EntryIndex(7), partial)]
            buckets = len(job.layout.gradient.buckets)
            assert recorder.buckets == [(EntryIndex(7), number) for number in range(buckets)]
            compute_us = recorder.compute_us[0]
            assert compute_us > 0
            # Part of the time is the gradient's size, whatever the share; none of it is negative.
            assert 0 < worker.fixed_us_of(compute_us, 40) < compute_us

    uvloop.run(main())


def test_a_share_of_no_samples_gives_zeros_and_all_buckets(
    start_worker: "StartWorker", spec: JobSpec
) -> None:
    async def main() -> None:
        async with start_worker() as (worker, recorder):
            await worker.prepare(spec, initialise=True)
            worker.own[:] = 1
            worker.compute(EntryIndex(1), BALLOT, 0, 0, 0)
            await recorder.until(lambda: recorder.computed)
            assert not worker.own.any()
            assert recorder.computed[0][1] == Partial(0, 0.0, 0)
            assert len(recorder.buckets) == len(worker.layout.gradient.buckets)

    uvloop.run(main())


def test_evaluation_scores_held_out_samples_and_readies_no_bucket(
    start_worker: "StartWorker", spec: JobSpec, job: Job
) -> None:
    async def main() -> None:
        async with start_worker() as (worker, recorder):
            await worker.prepare(spec, initialise=True)
            worker.evaluate(EntryIndex(2), BALLOT, 100, 50)
            await recorder.until(lambda: recorder.computed)
            expected = job.evaluate(initial_state_of(job), 100, 50)
            assert recorder.computed == [(EntryIndex(2), expected)]
            assert recorder.buckets == []

    uvloop.run(main())


def test_state_after_two_applied_entries_is_the_one_computed_in_process(
    start_worker: "StartWorker", spec: JobSpec, job: Job
) -> None:
    async def main() -> None:
        async with start_worker() as (worker, recorder):
            await worker.prepare(spec, initialise=True)
            state = initial_state_of(job)
            for number, entry_id in enumerate((FIRST, SECOND)):
                recorder.computed.clear()
                recorder.applied.clear()
                worker.compute(EntryIndex(number), BALLOT, number, 0, 64)
                await recorder.until(lambda: recorder.computed)
                worker.result[:] = worker.own / 64
                worker.apply(entry_id)
                await recorder.until(lambda: recorder.applied)
                worker.flip(entry_id)
                gradient, _ = gradient_of(job, state, number, 0, 64)
                after = new_state(job)
                job.apply(state, gradient / np.float32(64), after)
                assert recorder.applied == [(entry_id, digest_of(after))]
                assert worker.current_state() == after.data
                assert await worker.state_digest() == digest_of(after)
                state = after

    uvloop.run(main())


def test_applied_entry_changes_nothing_before_the_flip(
    start_worker: "StartWorker", spec: JobSpec
) -> None:
    async def main() -> None:
        async with start_worker() as (worker, recorder):
            digest = await worker.prepare(spec, initialise=True)
            worker.result[:] = 1
            worker.apply(FIRST)
            await recorder.until(lambda: recorder.applied)
            assert recorder.applied[0][1] != digest
            assert digest_of(worker.current_state()) == digest == await worker.state_digest()
            worker.flip(FIRST)
            assert digest_of(worker.current_state()) == recorder.applied[0][1]

    uvloop.run(main())


def test_flip_asked_for_before_the_answer_swaps_with_the_answer(
    start_worker: "StartWorker", spec: JobSpec
) -> None:
    async def main() -> None:
        async with start_worker() as (worker, recorder):
            before = await worker.prepare(spec, initialise=True)
            worker.result[:] = 1
            worker.apply(FIRST)
            worker.flip(FIRST)
            assert digest_of(worker.current_state()) == before
            await recorder.until(lambda: recorder.applied)
            assert digest_of(worker.current_state()) == recorder.applied[0][1] != before
            assert await worker.state_digest() == recorder.applied[0][1]

    uvloop.run(main())


def test_flip_to_an_entry_that_is_not_applied_is_refused_and_changes_nothing(
    start_worker: "StartWorker", spec: JobSpec
) -> None:
    async def main() -> None:
        async with start_worker() as (worker, recorder):
            before = await worker.prepare(spec, initialise=True)
            with pytest.raises(WorkerError, match="not yet flipped to is none"):
                worker.flip(FIRST)
            worker.result[:] = 1
            worker.apply(FIRST)
            await recorder.until(lambda: recorder.applied)
            with pytest.raises(WorkerError, match=f"not yet flipped to is {FIRST.hex()}"):
                worker.flip(SECOND)
            assert await worker.state_digest() == before
            worker.flip(FIRST)
            with pytest.raises(WorkerError, match="not yet flipped to is none"):
                worker.flip(FIRST)
            assert await worker.state_digest() == recorder.applied[0][1]
            assert recorder.failures == []

    uvloop.run(main())


def test_a_later_apply_replaces_the_one_before_and_only_it_can_be_flipped_to(
    start_worker: "StartWorker", spec: JobSpec
) -> None:
    async def main() -> None:
        async with start_worker() as (worker, recorder):
            before = await worker.prepare(spec, initialise=True)
            worker.result[:] = 1
            worker.apply(FIRST)
            worker.apply(SECOND)
            with pytest.raises(WorkerError, match="cannot flip"):
                worker.flip(FIRST)
            await recorder.until(lambda: recorder.applied)
            assert [entry_id for entry_id, _ in recorder.applied] == [SECOND]
            assert digest_of(worker.current_state()) == before
            worker.flip(SECOND)
            assert await worker.state_digest() == recorder.applied[0][1]

    uvloop.run(main())


def test_missing_data_is_a_data_set_error_and_the_worker_goes_on(
    start_worker: "StartWorker", tmp_path: Path, spec: JobSpec
) -> None:
    async def main() -> None:
        async with start_worker() as (worker, recorder):
            with pytest.raises(DataSetError, match=str(tmp_path)) as caught:
                await worker.probe_data("mnist-2nn", str(tmp_path))
            assert caught.value.hint
            assert await worker.prepare(spec, initialise=True)
            assert recorder.failures == []

    uvloop.run(main())


def test_data_that_the_spec_does_not_name_is_refused_with_both_digests(
    start_worker: "StartWorker", spec: JobSpec
) -> None:
    async def main() -> None:
        other = msgspec.structs.replace(spec, data_digest=ContentDigest(b"x" * 16))
        async with start_worker() as (worker, _):
            with pytest.raises(DataSetError) as caught:
                await worker.prepare(other, initialise=True)
            assert spec.data_digest.hex() in str(caught.value)
            assert other.data_digest.hex() in str(caught.value)
            assert await worker.prepare(spec, initialise=True)

    uvloop.run(main())


def test_an_answer_goes_to_its_own_request_after_one_was_cancelled(
    start_worker: "StartWorker",
) -> None:
    async def main() -> None:
        async with start_worker() as (worker, _), asyncio.timeout(60):
            given_up = asyncio.ensure_future(worker.probe_data("mnist-2nn", "/nowhere"))
            kept = asyncio.ensure_future(worker.probe_data("mnist-2nn", ""))
            await asyncio.sleep(0)  # both have asked, none has its answer
            given_up.cancel()
            assert await kept == open_data("mnist-2nn", "")
            assert given_up.cancelled()

    uvloop.run(main())


def test_worker_itself_flips_to_no_entry_twice_and_to_none_that_is_not_applied(
    spec: JobSpec,
) -> None:
    # The daemon's side refuses these before they are sent.
    memory = create_memory()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, threadpool_limits(1):  # the runner limits them for good
        runner = JobRunner(memory, theirs)
        with pytest.raises(RuntimeError, match="no job is open"):
            runner.handle(Apply(FIRST))
        runner.handle(OpenJob(spec, initialise=True))
        with pytest.raises(RuntimeError, match="the other copy holds nothing"):
            runner.handle(Flip(FIRST))
        runner.handle(Apply(FIRST))
        with pytest.raises(RuntimeError, match=f"the other copy holds {FIRST.hex()}"):
            runner.handle(Flip(SECOND))
        runner.handle(Flip(FIRST))
        with pytest.raises(RuntimeError, match="the other copy holds nothing"):
            runner.handle(Flip(FIRST))
    os.close(memory)
