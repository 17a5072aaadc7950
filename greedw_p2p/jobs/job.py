"""A job as its worker sees it: state, partial results that add up, and how a result is applied."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from greedw_p2p.ids import ContentDigest
from greedw_p2p.reduction.layout import BucketLayout

StateBytes = NDArray[np.uint8]
"""One copy of a job's replicated state: flat, ``JobLayout.state_bytes`` long, starting at a
multiple of 64 bytes."""

Gradient = NDArray[np.float32]
"""A flat vector of ``JobLayout.gradient.elements`` floats, starting at a multiple of 64 bytes."""


@dataclass(frozen=True, slots=True)
class JobLayout:
    """What memory a job needs: the vector that is reduced, in buckets, and the state's size."""

    gradient: BucketLayout
    state_bytes: int


@dataclass(frozen=True, slots=True)
class Partial:
    """The figures of a share: sums over its samples.

    ``loss_sum`` is NaN or infinite where the state or the samples gave a loss that is; nothing
    replaces it by a number. ``correct`` counts samples whose most likely class is the right one.
    """

    samples: int
    loss_sum: float
    correct: int


@dataclass(frozen=True, slots=True)
class DataSetFacts:
    """Which data set it is: the digest of its decoded content, and the sizes of its two parts."""

    digest: ContentDigest
    samples: int
    held_out: int


class Job(Protocol):
    """A job whose data is loaded. One thread calls it; each call ends before the next begins.

    Every state that is passed in may live in shared memory, at another place in each call.
    """

    @property
    def layout(self) -> JobLayout:
        """The sizes that every node must agree on."""
        ...

    def warm(self) -> None:
        """Compile every kernel that the other methods use, on inputs of a few samples."""
        ...

    def initial_state(self, state: StateBytes) -> None:
        """Write the state before the first round, from the spec's seed.

        Only the founder calls it; the others fetch its bytes.
        """
        ...

    def compute(
        self,
        state: StateBytes,
        round_number: int,
        start: int,
        count: int,
        *,
        gradient: Gradient,
        ready: Callable[[int], None],
    ) -> Partial:
        """Write the SUM of the gradients of a share of the round into ``gradient``.

        Args:
            state: the state before the round; not written.
            round_number: counts training rounds from 0; it decides the epoch.
            start: first position of the share within the epoch's permutation.
            count: samples of the share; with 0 the gradient is all zeros.
            gradient: overwritten, padding included.
            ready: called with each bucket's number, in order, as soon as the bucket is final.
        """
        ...

    def apply(self, state: StateBytes, result: Gradient, new_state: StateBytes) -> None:
        """Write the state after a round whose MEAN gradient is ``result``.

        Uses only +, -, *, / and square root in a fixed order, unfused, so that equal inputs give
        equal bytes on every node. Writes neither ``state`` nor ``result``, which must not overlap
        ``new_state``.
        """
        ...

    def evaluate(self, state: StateBytes, start: int, count: int) -> Partial:
        """Score ``count`` held-out samples from ``start`` on; 0 gives zeros."""
        ...
