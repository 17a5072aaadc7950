"""What a model is to a training job."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from greedw_p2p.kernels.arrays import Floats
from greedw_p2p.kernels.softmax import Labels


@dataclass(frozen=True, slots=True)
class Score:
    """Sums over a batch: of the loss, and of the samples classified right."""

    loss_sum: float
    correct: int


class Model(Protocol):
    """Forward and backward over one flat vector of parameters, and scratch memory of its own.

    Parameters and gradients have the same layout: arrays in the order in which backward produces
    their gradients, each starting on a cache line. Elements between arrays are zero in both.
    """

    @property
    def buckets(self) -> tuple[int, ...]:
        """Elements of each bucket of the vector, in backward order."""
        ...

    def initial_parameters(self, seed: int, parameters: Floats) -> None:
        """Fill ``parameters`` from a seed."""
        ...

    def gradient(
        self,
        parameters: Floats,
        inputs: Floats,
        labels: Labels,
        gradient: Floats,
        *,
        ready: Callable[[int], None],
        accumulate: bool = False,
    ) -> Score:
        """Write the sum of the batch's gradients into ``gradient``, or add it if ``accumulate``.

        ``ready(bucket)`` is called for each bucket, in order, once it is final.
        """
        ...

    def score(self, parameters: Floats, inputs: Floats, labels: Labels) -> Score:
        """Score a batch without a gradient."""
        ...
