"""The memory that the daemon and the worker of one job share.

It is anonymous (a memfd that the worker inherits), so nothing is left behind however either ends.
Its regions are ``own`` (the sum of this node's gradients), ``result`` (what everybody applies) and
two copies of the job's state, each at the start of a page. The worker, which may block, sizes it
once it knows the job: it reserves every page, so that a lack of memory is an error there and then
and no bus error later, and seals the size, so that neither side can pull a page from under the
other. What the host has is asked first: reserving more does not fail, it makes the kernel kill
processes until there is room.
"""

import errno
import fcntl
import mmap
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np

from greedw_p2p.errors import JobError
from greedw_p2p.jobs.job import Gradient, JobLayout, StateBytes
from greedw_p2p.limits import KIB, MIB

REGION_ALIGNMENT: Final = mmap.PAGESIZE
"""Bytes; regions never share a page or a cache line, and kernels may rely on 64-byte alignment."""

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

assert REGION_ALIGNMENT % 64 == 0


@dataclass(frozen=True, slots=True)
class Regions:
    """Where each region starts, in bytes, and how long the whole is."""

    own: int
    result: int
    states: tuple[int, int]
    total: int

    @classmethod
    def of(cls, layout: JobLayout) -> Self:
        """Return the regions that a job of this layout needs."""
        sizes = (layout.gradient.nbytes,) * 2 + (layout.state_bytes,) * 2
        own, result, first, second, total = _page_starts(sizes)
        # A file of no bytes cannot be mapped.
        return cls(own, result, (first, second), max(total, REGION_ALIGNMENT))


def create_memory() -> int:
    """Return the descriptor of a new, empty memory; it is closed on exec unless passed on."""
    return os.memfd_create("greedw-job", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


class SharedMemory:
    """One process's view of a job's memory.

    The arrays keep the mapping alive, whatever becomes of this object or of the other process.
    """

    def __init__(self, descriptor: int, layout: JobLayout) -> None:
        """Map the memory, which must have been allocated for this layout."""
        regions = Regions.of(layout)
        assert os.fstat(descriptor).st_size == regions.total
        mapping = mmap.mmap(descriptor, regions.total)
        elements = layout.gradient.elements
        self.layout = layout
        self.own: Gradient = np.ndarray(elements, np.float32, mapping, regions.own)
        self.result: Gradient = np.ndarray(elements, np.float32, mapping, regions.result)
        first, second = (
            np.ndarray(layout.state_bytes, np.uint8, mapping, start) for start in regions.states
        )
        self.states: tuple[StateBytes, StateBytes] = (first, second)

    @classmethod
    def allocate(cls, descriptor: int, layout: JobLayout) -> Self:
        """Size an empty memory for this layout, reserve and seal it, and map it.

        Raises:
            JobError: if the host has not that much memory to give.
        """
        total = Regions.of(layout).total
        what = f"cannot reserve {total / MIB:.1f} MiB of memory for gradients and state"
        available = _available_bytes()
        if total > available:
            raise JobError(f"{what}: this host has {available / MIB:.1f} MiB left")
        try:
            os.posix_fallocate(descriptor, 0, total)
        except OSError as error:
            if error.errno not in {errno.ENOMEM, errno.ENOSPC, errno.EFBIG}:
                raise
            raise JobError(f"{what}: {error.strerror}") from error
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        return cls(descriptor, layout)


def _available_bytes() -> int:
    """Return what the kernel estimates can be allocated without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, figure = line.partition(":")
        if name == "MemAvailable":
            return int(figure.split()[0]) * KIB
    return sys.maxsize  # a kernel before 3.14 does not say; then only the reservation tells


def _page_starts(sizes: tuple[int, ...]) -> Iterator[int]:
    """Yield where regions of these sizes start, each on pages of its own, and the end of all."""
    start = 0
    for size in sizes:
        yield start
        start += -(-size // REGION_ALIGNMENT) * REGION_ALIGNMENT
    yield start
