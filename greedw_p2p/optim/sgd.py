"""Stochastic gradient descent with momentum, as PyTorch defines it (no dampening, no Nesterov).

Source: I. Sutskever et al., ICML 2013, in the form of ``torch.optim.SGD``: the learning rate
multiplies the velocity when it is applied, not when it is gathered.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from greedw_p2p.kernels.arrays import Floats
from greedw_p2p.kernels.momentum import sgd_momentum

STATE_ROWS: Final = 2
"""Vectors that an optimiser's state holds: the parameters and their velocity."""


@dataclass(frozen=True, slots=True)
class SgdMomentum:
    """The rule with its two settings; both are rounded to float32 before they are used."""

    learning_rate: float
    momentum: float

    def apply(self, state: Floats, gradient: Floats, new_state: Floats) -> None:
        """Write the state after one step with a mean gradient, shape (n,).

        Both states have shape (2, n): parameters, then velocity, which is zero at first. They must
        be different memory, so that a step which is given up leaves the old state as it was.
        """
        assert state.shape == new_state.shape == (STATE_ROWS, len(gradient))
        assert not np.may_share_memory(state, new_state)
        rate, momentum = np.float32(self.learning_rate), np.float32(self.momentum)
        sgd_momentum(state, gradient, rate, momentum, new_state)
