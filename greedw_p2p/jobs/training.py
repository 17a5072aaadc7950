"""The training job: mini-batch gradients of a model over labelled images, summed by round."""

from collections.abc import Callable
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from greedw_p2p.data.permutation import epoch_permutation
from greedw_p2p.jobs.job import Gradient, JobLayout, Partial, StateBytes
from greedw_p2p.jobs.spec import JobSpec
from greedw_p2p.kernels.arrays import Floats, aligned_floats
from greedw_p2p.kernels.pixels import Bytes, Order, gather
from greedw_p2p.models.model import Model, Score
from greedw_p2p.optim.sgd import STATE_ROWS, SgdMomentum
from greedw_p2p.reduction.layout import ELEMENT_BYTES, BucketLayout

BLOCK_SAMPLES: Final = 512
"""Most samples that go through the model at once. It bounds the scratch memory whatever the batch
is; a larger share is summed block by block, which costs one addition per parameter and block."""


class LabelledImages(Protocol):
    """Images as bytes, shape (n, pixels), with labels of shape (n,)."""

    @property
    def images(self) -> Bytes:
        """Grey values from 0 to 255."""
        ...

    @property
    def labels(self) -> Bytes:
        """Classes, from 0."""
        ...


def training_layout(buckets: tuple[int, ...]) -> JobLayout:
    """Return the memory that a model with these buckets needs: parameters and velocity."""
    gradient = BucketLayout(buckets)
    return JobLayout(gradient, STATE_ROWS * gradient.nbytes)


class TrainingJob:
    """A model, its optimiser and its data, as :class:`greedw_p2p.jobs.job.Job`.

    The state is the parameters followed by the momentum's velocity, in float32.
    """

    def __init__(
        self, spec: JobSpec, model: Model, train: LabelledImages, held_out: LabelledImages
    ) -> None:
        """Take the data as it is; ``model`` must accept batches of ``BLOCK_SAMPLES``."""
        assert (len(train.labels), len(held_out.labels)) == (spec.samples, spec.held_out)
        self._spec = spec
        self._model = model
        self._train = train
        self._held_out = held_out
        self._optimizer = SgdMomentum(spec.learning_rate, spec.momentum)
        self._layout = training_layout(model.buckets)
        self._inputs = aligned_floats(BLOCK_SAMPLES, train.images.shape[1])
        self._labels = np.empty(BLOCK_SAMPLES, dtype=np.uint8)
        self._epoch = -1
        self._order: Order = np.empty(0, dtype=np.int64)
        self._held_out_order: Order = np.arange(spec.held_out, dtype=np.int64)

    @property
    def layout(self) -> JobLayout:
        """The sizes of gradient and state."""
        return self._layout

    def warm(self) -> None:
        """Compile every kernel, or load it from the cache, with one sample each."""
        state, new_state = self._empty_state(), self._empty_state()
        gradient = aligned_floats(self._layout.gradient.elements)
        self.compute(state, 0, 0, 1, gradient=gradient, ready=_nobody_waits)
        self.apply(state, gradient, new_state)
        self.evaluate(new_state, 0, min(1, self._spec.held_out))

    def initial_state(self, state: StateBytes) -> None:
        """Write the model's initial parameters and no velocity."""
        parameters, velocity = self._rows_of(state)
        self._model.initial_parameters(self._spec.seed, parameters)
        velocity[...] = 0

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
        """Write the sum of the gradients over ``count`` samples from position ``start`` on."""
        order = self._order_of(self._spec.epoch_of(round_number))
        assert 0 <= start <= start + count <= len(order)
        if count == 0:
            gradient[...] = 0
            for bucket in range(len(self._layout.gradient.buckets)):
                ready(bucket)
            return Partial(0, 0.0, 0)
        parameters = self._rows_of(state)[0]
        scores: list[Score] = []
        for first, block in _blocks(order[start : start + count]):
            is_last = first + len(block) == count
            inputs, labels = self._gathered(self._train, block)
            score = self._model.gradient(
                parameters,
                inputs,
                labels,
                gradient,
                ready=ready if is_last else _nobody_waits,
                accumulate=first > 0,
            )
            scores.append(score)
        return _partial(count, scores)

    def apply(self, state: StateBytes, result: Gradient, new_state: StateBytes) -> None:
        """Write the state after one optimiser step with the mean gradient ``result``."""
        self._optimizer.apply(self._rows_of(state), result, self._rows_of(new_state))

    def evaluate(self, state: StateBytes, start: int, count: int) -> Partial:
        """Score held-out samples [start, start + count)."""
        assert 0 <= start <= start + count <= self._spec.held_out
        parameters = self._rows_of(state)[0]
        scores = [
            self._model.score(parameters, *self._gathered(self._held_out, block))
            for _, block in _blocks(self._held_out_order[start : start + count])
        ]
        return _partial(count, scores)

    def _order_of(self, epoch: int) -> Order:
        """Return the epoch's permutation; that of the epoch asked last is kept."""
        if epoch != self._epoch:
            self._order = epoch_permutation(self._spec.seed, epoch, self._spec.samples)
            self._epoch = epoch
        return self._order

    def _gathered(self, data: LabelledImages, block: Order) -> tuple[Floats, NDArray[np.uint8]]:
        """Return the block's samples, in scratch memory that the next call overwrites."""
        inputs, labels = self._inputs[: len(block)], self._labels[: len(block)]
        gather(data.images, data.labels, block, inputs, labels)
        return inputs, labels

    def _rows_of(self, state: StateBytes) -> Floats:
        """Return a state's bytes as parameters and velocity, shape (2, elements)."""
        assert state.shape == (self._layout.state_bytes,)
        return state.view(np.float32).reshape(STATE_ROWS, -1)

    def _empty_state(self) -> StateBytes:
        floats = aligned_floats(self._layout.state_bytes // ELEMENT_BYTES)
        floats[...] = 0
        return floats.view(np.uint8)


def _blocks(order: Order) -> list[tuple[int, Order]]:
    """Cut into runs of at most ``BLOCK_SAMPLES``, each with its first position."""
    return [
        (first, order[first : first + BLOCK_SAMPLES])
        for first in range(0, len(order), BLOCK_SAMPLES)
    ]


def _partial(samples: int, scores: list[Score]) -> Partial:
    """Add up the blocks' scores, in order."""
    loss_sum = sum((score.loss_sum for score in scores), start=0.0)
    return Partial(samples, loss_sum, sum(score.correct for score in scores))


def _nobody_waits(bucket: int) -> None:
    """Take the news of a bucket that is not final yet, or that nobody sends."""
