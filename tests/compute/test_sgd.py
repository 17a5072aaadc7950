import numpy as np
import pytest

from greedw_p2p.kernels.arrays import Floats
from greedw_p2p.optim.sgd import SgdMomentum


def normal(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def test_three_steps_give_what_the_formula_gives_by_hand() -> None:
    optimizer = SgdMomentum(learning_rate=0.5, momentum=0.25)
    state, new_state = np.array([[1], [0]], np.float32), np.empty((2, 1), np.float32)
    history: list[list[float]] = []
    for gradient in (2, 4, -8):
        optimizer.apply(state, np.array([gradient], np.float32), new_state)
        state, new_state = new_state, state
        history.append([float(state[0, 0]), float(state[1, 0])])
    # v: 2, 0.25 * 2 + 4, 0.25 * 4.5 - 8; p: 1 - v / 2 and so on. All exact in binary.
    assert history == [[0, 2], [-2.25, 4.5], [1.1875, -6.875]]


def test_without_momentum_it_is_plain_gradient_descent() -> None:
    state, gradient = normal(1, 2, 50), normal(2, 50)
    new_state = np.empty_like(state)
    SgdMomentum(0.1, 0.0).apply(state, gradient, new_state)
    assert new_state[1].tobytes() == (gradient + np.float32(0) * state[1]).tobytes()
    expected = state[0] - np.float32(0.1) * gradient
    assert new_state[0].tobytes() == expected.tobytes()


def test_a_step_leaves_its_inputs_as_they_were() -> None:
    state, gradient = normal(1, 2, 50), normal(2, 50)
    before = state.tobytes(), gradient.tobytes()
    SgdMomentum(0.1, 0.9).apply(state, gradient, np.empty_like(state))
    assert (state.tobytes(), gradient.tobytes()) == before


def test_a_step_in_place_is_refused() -> None:
    state = normal(1, 2, 50)
    with pytest.raises(AssertionError):
        SgdMomentum(0.1, 0.9).apply(state, normal(2, 50), state)


def test_padding_of_zeros_stays_zero() -> None:
    state, gradient = normal(1, 2, 64), normal(2, 64)
    state[:, 40:] = gradient[40:] = 0
    new_state = np.full_like(state, np.nan)
    SgdMomentum(0.1, 0.9).apply(state, gradient, new_state)
    assert not new_state[:, 40:].any()
