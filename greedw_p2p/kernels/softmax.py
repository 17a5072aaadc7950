"""Softmax with cross-entropy loss, forward and backward in one pass."""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from greedw_p2p.kernels.arrays import Floats
from greedw_p2p.kernels.compiled import compiled

Labels = NDArray[np.uint8]
"""Classes, shape (n,); every one below the number of logits. Kernels do not check it."""


def softmax_cross_entropy_reference(
    logits: Floats, bias: Floats, labels: Labels, bias_gradient: Floats
) -> tuple[float, int]:
    """Score logits + bias, and replace ``logits`` by the gradient of the summed loss.

    Args:
        logits: shape (n, classes).
        bias: shape (classes,).
        labels: shape (n,).
        bias_gradient: shape (classes,); the rows of the gradient are added to it in order.

    Returns:
        The loss summed over the samples, and how many have their label as the first largest
        logit. Exponentials are taken in float64. A NaN among a sample's logits makes its loss and
        its gradient NaN, and the sample counts as wrong.
    """
    np.add(logits, bias, out=logits)
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    totals = exponentials.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    losses = np.log(totals[:, 0]) - shifted[rows, labels]
    correct = (logits.argmax(axis=1) == labels) & ~np.isnan(losses)
    logits[...] = exponentials / totals
    logits[rows, labels] -= np.float32(1)
    for row in logits:
        bias_gradient += row
    return float(losses.sum()), int(correct.sum())


def _softmax_cross_entropy(
    logits: Floats, bias: Floats, labels: Labels, bias_gradient: Floats
) -> tuple[float, int]:
    classes = logits.shape[1]
    exponentials = np.empty(classes, dtype=np.float64)
    loss_sum = 0.0
    correct = 0
    for row in range(logits.shape[0]):
        label = labels[row]
        best = 0
        for column in range(classes):
            logits[row, column] += bias[column]
            if logits[row, column] > logits[row, best]:
                best = column
        # A NaN never compares as larger, so the largest may be a number; the NaN is in the sum.
        largest = np.float64(logits[row, best])
        total = 0.0
        for column in range(classes):
            exponentials[column] = math.exp(np.float64(logits[row, column]) - largest)
            total += exponentials[column]
        loss = math.log(total) - (np.float64(logits[row, label]) - largest)
        loss_sum += loss
        if best == label and not math.isnan(loss):
            correct += 1
        for column in range(classes):
            probability = np.float32(exponentials[column] / total)
            if column == label:
                probability -= np.float32(1)
            logits[row, column] = probability
            bias_gradient[column] += probability
    return loss_sum, correct


softmax_cross_entropy: Final = compiled(_softmax_cross_entropy)
"""Compiled twin of :func:`softmax_cross_entropy_reference`, equal to float tolerance: numpy and
the C library round exponentials differently in the last bit."""
