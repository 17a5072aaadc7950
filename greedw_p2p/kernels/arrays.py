"""Shapes of arrays, and memory that starts on a cache line."""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
"""A float32 array of any shape."""

ALIGNMENT_BYTES: Final = 64
ALIGNED_FLOATS: Final = ALIGNMENT_BYTES // 4
"""Arrays within a flat vector start at multiples of this many floats: one cache line, and the
width of the widest vector instruction."""


def aligned_floats(*shape: int) -> Floats:
    """Return a contiguous array that starts at a multiple of 64 bytes, uninitialised."""
    nbytes = 4 * math.prod(shape)
    memory = np.empty(nbytes + ALIGNMENT_BYTES, dtype=np.uint8)
    skipped = -memory.ctypes.data % ALIGNMENT_BYTES
    return memory[skipped : skipped + nbytes].view(np.float32).reshape(shape)


def padded(elements: int) -> int:
    """Return the number of elements rounded up to whole cache lines."""
    return -(-elements // ALIGNED_FLOATS) * ALIGNED_FLOATS
