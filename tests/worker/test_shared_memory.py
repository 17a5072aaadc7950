import os
import resource
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from greedw_daemon.worker.shared_memory import (
    REGION_ALIGNMENT,
    Regions,
    SharedMemory,
    create_memory,
)
from greedw_p2p.errors import JobError
from greedw_p2p.jobs.job import JobLayout
from greedw_p2p.limits import MIB
from greedw_p2p.reduction.layout import BucketLayout

LAYOUT = JobLayout(BucketLayout((1040, 16, 2000)), state_bytes=20_001)


@pytest.fixture
def descriptor() -> Iterator[int]:
    memory = create_memory()
    yield memory
    os.close(memory)


@pytest.mark.parametrize(
    "layout", [LAYOUT, JobLayout(BucketLayout(()), 0), JobLayout(BucketLayout((16,)), 1)]
)
def test_regions_start_on_pages_and_do_not_overlap(layout: JobLayout) -> None:
    regions = Regions.of(layout)
    starts = (regions.own, regions.result, *regions.states)
    sizes = (layout.gradient.nbytes,) * 2 + (layout.state_bytes,) * 2
    assert all(start % REGION_ALIGNMENT == 0 for start in starts)
    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
    assert all(end <= after for end, after in zip(ends, (*starts[1:], regions.total), strict=True))


def test_what_one_side_writes_the_other_reads_region_by_region(descriptor: int) -> None:
    ours = SharedMemory.allocate(descriptor, LAYOUT)
    theirs = SharedMemory(descriptor, LAYOUT)
    ours.own[:] = 1.5
    ours.result[:] = 2.5
    ours.states[0][:] = 3
    ours.states[1][:] = 4
    assert theirs.own.shape == theirs.result.shape == (3056,)
    assert theirs.states[0].shape == theirs.states[1].shape == (20_001,)
    assert np.all(theirs.own == 1.5)
    assert np.all(theirs.result == 2.5)
    assert np.all(theirs.states[0] == 3)
    assert np.all(theirs.states[1] == 4)


def test_arrays_outlive_descriptor_and_mapping(descriptor: int) -> None:
    copy = os.dup(descriptor)
    result = SharedMemory.allocate(copy, LAYOUT).result
    os.close(copy)
    result[:] = 7
    assert np.all(SharedMemory(descriptor, LAYOUT).result == 7)


@pytest.mark.parametrize("size", [0, 10 * REGION_ALIGNMENT**2])
def test_neither_side_can_resize_allocated_memory(descriptor: int, size: int) -> None:
    SharedMemory.allocate(descriptor, LAYOUT)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, size)


@pytest.fixture
def size_limit() -> Iterator[Callable[[int], None]]:
    """Limit the size of files. Also a seat belt: a huge reservation that went through would have
    the kernel kill processes of the whole host."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_more_memory_than_the_host_has_is_a_job_error_that_names_both_sizes(
    descriptor: int, size_limit: Callable[[int], None]
) -> None:
    size_limit(64 * MIB)
    layout = JobLayout(BucketLayout(()), state_bytes=2**55)
    with pytest.raises(
        JobError, match=r"reserve 68719476736\.0 MiB of memory .* this host has \d+\.\d MiB left"
    ):
        SharedMemory.allocate(descriptor, layout)


def test_a_reservation_that_the_kernel_refuses_is_a_job_error(
    descriptor: int, size_limit: Callable[[int], None]
) -> None:
    size_limit(MIB)
    layout = JobLayout(BucketLayout(()), state_bytes=MIB)
    with pytest.raises(JobError, match=r"cannot reserve 2\.0 MiB of memory .*: File too large"):
        SharedMemory.allocate(descriptor, layout)
