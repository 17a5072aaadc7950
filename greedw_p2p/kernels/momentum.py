"""The update of SGD with momentum, one pass over memory."""

from typing import Final

import numpy as np

from greedw_p2p.kernels.arrays import Floats
from greedw_p2p.kernels.compiled import compiled


def sgd_momentum_reference(
    state: Floats, gradient: Floats, rate: np.float32, momentum: np.float32, new_state: Floats
) -> None:
    """Write v' = momentum * v + g and p' = p - rate * v' to ``new_state``.

    Both states have shape (2, n), rows p and v, and must not overlap; ``gradient`` has (n,). All
    in float32, each operation rounded by itself.
    """
    (parameters, velocity), (new_parameters, new_velocity) = state, new_state
    np.multiply(velocity, momentum, out=new_velocity)
    np.add(new_velocity, gradient, out=new_velocity)
    np.multiply(new_velocity, rate, out=new_parameters)
    np.subtract(parameters, new_parameters, out=new_parameters)


def _sgd_momentum(
    state: Floats, gradient: Floats, rate: np.float32, momentum: np.float32, new_state: Floats
) -> None:
    for i in range(state.shape[1]):
        velocity = momentum * state[1, i] + gradient[i]
        new_state[1, i] = velocity
        new_state[0, i] = state[0, i] - rate * velocity


sgd_momentum: Final = compiled(_sgd_momentum)
"""Compiled twin of :func:`sgd_momentum_reference`; the same bits on every host."""
