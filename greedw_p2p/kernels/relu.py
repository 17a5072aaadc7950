"""ReLU, forward and backward, each fused with the bias that stands before it."""

from typing import Final

import numpy as np

from greedw_p2p.kernels.arrays import Floats
from greedw_p2p.kernels.compiled import compiled


def add_bias_relu_reference(values: Floats, bias: Floats) -> None:
    """Replace ``values``, shape (n, m), by relu(values + bias), ``bias`` of shape (m,).

    NaN stays NaN: hence "zero if not positive" is asked as "<= 0", which NaN fails.
    """
    np.add(values, bias, out=values)
    values[values <= 0] = 0


def _add_bias_relu(values: Floats, bias: Floats) -> None:
    zero = np.float32(0)
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            value = values[row, column] + bias[column]
            values[row, column] = zero if value <= zero else value


add_bias_relu: Final = compiled(_add_bias_relu)
"""Compiled twin of :func:`add_bias_relu_reference`; the same bits."""


def relu_backward_reference(gradient: Floats, activation: Floats, bias_gradient: Floats) -> None:
    """Zero ``gradient`` where ReLU did, and add its rows to ``bias_gradient`` in order.

    ``gradient`` and ``activation``, the output of ReLU, have shape (n, m); the sum has (m,).
    """
    gradient[activation <= 0] = 0
    for row in gradient:
        bias_gradient += row


def _relu_backward(gradient: Floats, activation: Floats, bias_gradient: Floats) -> None:
    zero = np.float32(0)
    for row in range(gradient.shape[0]):
        for column in range(gradient.shape[1]):
            value = gradient[row, column]
            if activation[row, column] <= zero:
                value = zero
            gradient[row, column] = value
            bias_gradient[column] += value


relu_backward: Final = compiled(_relu_backward)
"""Compiled twin of :func:`relu_backward_reference`; the same bits."""
