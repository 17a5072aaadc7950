"""Mnist-2NN: 784 pixels, two hidden layers of 200 with ReLU, 10 classes; 199,210 parameters.

Source: H. B. McMahan et al., AISTATS 2017, where it is named MNIST 2NN.

Memory is one flat vector in the order of backward, ``W3 b3 | W2 b2 | W1 rows | ... | W1 rows b1``
with a bar between buckets. Weights are stored (inputs, outputs), so a block of rows of W1 is
contiguous and its gradient can leave before the next block's is computed.

Products are numpy's, so limit BLAS to one thread first: on a busy host its threads wait for one
another in loops, and training was seen to take seven times as long. Equal inputs give equal bits
in processes with the same BLAS kernels, not on different CPUs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from greedw_p2p.kernels.arrays import Floats, aligned_floats, padded
from greedw_p2p.kernels.relu import add_bias_relu, relu_backward
from greedw_p2p.kernels.softmax import Labels, softmax_cross_entropy
from greedw_p2p.models.model import Score

PIXELS: Final = 784
HIDDEN: Final = 200
CLASSES: Final = 10
PARAMETERS: Final = PIXELS * HIDDEN + HIDDEN + HIDDEN * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES

W1_BLOCK_ROWS: Final = 196
"""Rows of W1 in a bucket, 157 KB of gradient: the first of four is on its way while the others are
computed, and products with fewer rows lose more speed than an earlier start gains."""

_W1_BLOCKS: Final = PIXELS // W1_BLOCK_ROWS
_W1_BLOCK_ELEMENTS: Final = W1_BLOCK_ROWS * HIDDEN
_W2_BUCKET: Final = 1
_W1_FIRST_BUCKET: Final = 2

BUCKETS: Final = (
    HIDDEN * CLASSES + padded(CLASSES),
    HIDDEN * HIDDEN + padded(HIDDEN),
    *[_W1_BLOCK_ELEMENTS] * (_W1_BLOCKS - 1),
    _W1_BLOCK_ELEMENTS + padded(HIDDEN),
)
ELEMENTS: Final = sum(BUCKETS)

assert PIXELS % W1_BLOCK_ROWS == 0
assert all(elements == padded(elements) for elements in BUCKETS)
assert all(padded(n) == n for n in (HIDDEN * CLASSES, HIDDEN * HIDDEN, _W1_BLOCK_ELEMENTS))


@dataclass(frozen=True, slots=True)
class Arrays:
    """The model's arrays as views of a flat vector: weights (inputs, outputs), biases (outputs,).

    ``gaps`` are the biases with the padding that follows each.
    """

    w3: Floats
    b3: Floats
    w2: Floats
    b2: Floats
    w1: Floats
    b1: Floats
    gaps: tuple[Floats, Floats, Floats]


def arrays_of(vector: Floats) -> Arrays:
    """Return the model's arrays within a flat vector of ``ELEMENTS`` floats."""
    assert vector.shape == (ELEMENTS,)
    place = 0

    def take(elements: int) -> Floats:
        nonlocal place
        view = vector[place : place + elements]
        place += padded(elements)
        return view

    w3, b3 = take(HIDDEN * CLASSES), take(padded(CLASSES))
    w2, b2 = take(HIDDEN * HIDDEN), take(padded(HIDDEN))
    w1, b1 = take(PIXELS * HIDDEN), take(padded(HIDDEN))
    return Arrays(
        w3=w3.reshape(HIDDEN, CLASSES),
        b3=b3[:CLASSES],
        w2=w2.reshape(HIDDEN, HIDDEN),
        b2=b2[:HIDDEN],
        w1=w1.reshape(PIXELS, HIDDEN),
        b1=b1[:HIDDEN],
        gaps=(b3, b2, b1),
    )


class Mnist2NN:
    """Mnist-2NN with scratch memory for batches of up to ``samples_max``."""

    def __init__(self, samples_max: int) -> None:
        self._samples_max = samples_max
        self._hidden1 = aligned_floats(samples_max, HIDDEN)
        self._hidden2 = aligned_floats(samples_max, HIDDEN)
        self._logits = aligned_floats(samples_max, CLASSES)
        self._hidden1_gradient = aligned_floats(samples_max, HIDDEN)
        self._hidden2_gradient = aligned_floats(samples_max, HIDDEN)
        self._unused_bias_gradient = aligned_floats(CLASSES)
        # Holds a product until it is added to a gradient: W2's, or one block of W1's.
        self._product = aligned_floats(max(HIDDEN, W1_BLOCK_ROWS), HIDDEN)

    @property
    def buckets(self) -> tuple[int, ...]:
        """Elements of each bucket, in backward order."""
        return BUCKETS

    def initial_parameters(self, seed: int, parameters: Floats) -> None:
        """Fill with zero biases and uniform weights within sqrt(6 / inputs).

        Source: K. He et al., ICCV 2015, the variance that ReLU keeps from layer to layer.
        """
        random = np.random.default_rng(seed)
        parameters[...] = 0
        arrays = arrays_of(parameters)
        for weights in (arrays.w1, arrays.w2, arrays.w3):
            bound = (6 / weights.shape[0]) ** 0.5
            weights[...] = random.uniform(-bound, bound, weights.shape)

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
        """Write the sum of the batch's gradients, or add it if ``accumulate``.

        Args:
            parameters: flat, as :func:`arrays_of` divides it.
            inputs: shape (n, 784), n from 1 to ``samples_max``.
            labels: shape (n,).
            gradient: flat, of the parameters' layout.
            ready: called with each bucket's number, in order, as soon as it is final.
            accumulate: whether ``gradient`` already holds the sum of other batches.
        """
        weights, sums = arrays_of(parameters), arrays_of(gradient)
        if not accumulate:
            # The kernels add to the biases' gradients; products overwrite the weights'.
            for gap in sums.gaps:
                gap[...] = 0
        hidden1, hidden2, logits = self._forward(weights, inputs)
        loss_sum, correct = softmax_cross_entropy(logits, weights.b3, labels, sums.b3)

        self._multiply(hidden2.T, logits, sums.w3, accumulate=accumulate)
        ready(0)
        hidden2_gradient = self._hidden2_gradient[: len(inputs)]
        np.matmul(logits, weights.w3.T, out=hidden2_gradient)
        relu_backward(hidden2_gradient, hidden2, sums.b2)

        self._multiply(hidden1.T, hidden2_gradient, sums.w2, accumulate=accumulate)
        ready(_W2_BUCKET)
        hidden1_gradient = self._hidden1_gradient[: len(inputs)]
        np.matmul(hidden2_gradient, weights.w2.T, out=hidden1_gradient)
        relu_backward(hidden1_gradient, hidden1, sums.b1)

        for block in range(_W1_BLOCKS):
            rows = slice(block * W1_BLOCK_ROWS, (block + 1) * W1_BLOCK_ROWS)
            self._multiply(
                inputs[:, rows].T, hidden1_gradient, sums.w1[rows], accumulate=accumulate
            )
            ready(_W1_FIRST_BUCKET + block)
        return Score(loss_sum, correct)

    def score(self, parameters: Floats, inputs: Floats, labels: Labels) -> Score:
        """Score a batch of 1 to ``samples_max`` samples without a gradient."""
        weights = arrays_of(parameters)
        _, _, logits = self._forward(weights, inputs)
        return Score(*softmax_cross_entropy(logits, weights.b3, labels, self._unused_bias_gradient))

    def _forward(self, weights: Arrays, inputs: Floats) -> tuple[Floats, Floats, Floats]:
        """Return both hidden layers, shape (n, 200), and the logits before their bias, (n, 10)."""
        samples = len(inputs)
        assert inputs.shape == (samples, PIXELS)
        assert 1 <= samples <= self._samples_max
        hidden1, hidden2 = self._hidden1[:samples], self._hidden2[:samples]
        logits = self._logits[:samples]
        np.matmul(inputs, weights.w1, out=hidden1)
        add_bias_relu(hidden1, weights.b1)
        np.matmul(hidden1, weights.w2, out=hidden2)
        add_bias_relu(hidden2, weights.b2)
        np.matmul(hidden2, weights.w3, out=logits)
        return hidden1, hidden2, logits

    def _multiply(self, left: Floats, right: Floats, out: Floats, *, accumulate: bool) -> None:
        """Write the product to ``out``, or add it; either way without allocating."""
        if not accumulate:
            np.matmul(left, right, out=out)
            return
        product = self._product.reshape(-1)[: out.size].reshape(out.shape)
        np.matmul(left, right, out=product)
        np.add(out, product, out=out)
