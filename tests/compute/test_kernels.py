import math
from collections.abc import Callable
from typing import cast

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from greedw_p2p.kernels.arrays import Floats, aligned_floats, padded
from greedw_p2p.kernels.compiled import compiled
from greedw_p2p.kernels.momentum import sgd_momentum, sgd_momentum_reference
from greedw_p2p.kernels.pixels import gather, gather_reference
from greedw_p2p.kernels.relu import (
    add_bias_relu,
    add_bias_relu_reference,
    relu_backward,
    relu_backward_reference,
)
from greedw_p2p.kernels.softmax import softmax_cross_entropy, softmax_cross_entropy_reference

compiles_at_first = settings(deadline=None)
seeds = st.integers(0, 2**32 - 1)
rows = st.integers(0, 40)
columns = st.integers(1, 40)
floats32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def normal(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def same_bits(left: Floats, right: Floats) -> bool:
    # NaNs are equal here: which of two NaNs an operation passes on is the compiler's choice.
    return np.array_equal(left, right, equal_nan=True) and bool(
        np.array_equal(np.signbit(left[~np.isnan(left)]), np.signbit(right[~np.isnan(right)]))
    )


@compiles_at_first
@given(data=st.data(), shape=st.tuples(rows, columns))
def test_add_bias_relu_has_its_twins_bits_for_any_floats(
    data: st.DataObject, shape: tuple[int, int]
) -> None:
    any_floats = st.floats(width=32)
    values = data.draw(hnp.arrays(np.float32, shape, elements=any_floats))
    bias = data.draw(hnp.arrays(np.float32, shape[1], elements=any_floats))
    expected = values.copy()
    with np.errstate(all="ignore"):
        add_bias_relu_reference(expected, bias)
    add_bias_relu(values, bias)
    assert same_bits(values, expected)


@compiles_at_first
@given(seed=seeds, n=rows, m=columns)
def test_relu_backward_has_its_twins_bits(seed: int, n: int, m: int) -> None:
    gradient, activation, total = normal(seed, n, m), normal(seed + 1, n, m), normal(seed + 2, m)
    expected, expected_total = gradient.copy(), total.copy()
    relu_backward_reference(expected, activation, expected_total)
    relu_backward(gradient, activation, total)
    assert same_bits(gradient, expected)
    assert same_bits(total, expected_total)


@compiles_at_first
@given(seed=seeds, n=rows, classes=st.integers(2, 20), scale=st.sampled_from([0.1, 1, 30]))
def test_softmax_agrees_with_its_twin(seed: int, n: int, classes: int, scale: float) -> None:
    logits, bias = normal(seed, n, classes) * np.float32(scale), normal(seed + 1, classes)
    labels = np.random.default_rng(seed).integers(0, classes, n, dtype=np.uint8)
    total, expected, expected_total = np.zeros_like(bias), logits.copy(), np.zeros_like(bias)
    expected_score = softmax_cross_entropy_reference(expected, bias, labels, expected_total)
    score = softmax_cross_entropy(logits, bias, labels, total)
    assert math.isclose(score[0], expected_score[0], rel_tol=1e-12, abs_tol=1e-12)
    assert score[1] == expected_score[1]
    np.testing.assert_allclose(logits, expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(total, expected_total, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", [softmax_cross_entropy, softmax_cross_entropy_reference])
@pytest.mark.parametrize("place", range(10))
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_softmax_passes_on_what_is_not_a_number_wherever_it_stands(
    kernel: Callable[..., tuple[float, int]], place: int, value: float
) -> None:
    logits, bias = normal(1, 3, 10), np.zeros(10, np.float32)
    logits[1, place] = value
    labels, total = np.array([3, 4, 5], np.uint8), np.zeros(10, np.float32)
    with np.errstate(invalid="ignore"):
        loss_sum, _ = kernel(logits, bias, labels, total)
    assert np.isnan(loss_sum)
    assert np.isnan(logits[1]).all()
    assert np.isnan(total).all()
    assert np.isfinite(logits[[0, 2]]).all()


@pytest.mark.parametrize("kernel", [softmax_cross_entropy, softmax_cross_entropy_reference])
def test_softmax_counts_the_first_of_equal_logits_as_the_answer(
    kernel: Callable[..., tuple[float, int]],
) -> None:
    logits, zeros = np.zeros((3, 4), np.float32), np.zeros(4, np.float32)
    loss_sum, correct = kernel(logits, zeros.copy(), np.array([0, 1, 3], np.uint8), zeros)
    assert correct == 1
    assert math.isclose(loss_sum, 3 * math.log(4))


@pytest.mark.parametrize("kernel", [softmax_cross_entropy, softmax_cross_entropy_reference])
def test_softmax_does_not_overflow_with_the_largest_logits(
    kernel: Callable[..., tuple[float, int]],
) -> None:
    logits = np.array([[3e38, -3e38, 0]], np.float32)
    zeros = np.zeros(3, np.float32)
    loss_sum, correct = kernel(logits, zeros.copy(), np.array([1], np.uint8), zeros)
    assert math.isclose(loss_sum, 6e38, rel_tol=1e-6)
    assert correct == 0
    assert logits.tolist() == [[1, -1, 0]]


@compiles_at_first
@given(seed=seeds, n=rows, pixels=columns)
def test_gather_has_its_twins_bits(seed: int, n: int, pixels: int) -> None:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (50, pixels), dtype=np.uint8)
    labels = rng.integers(0, 10, 50, dtype=np.uint8)
    order = rng.integers(0, 50, n)
    inputs, expected = aligned_floats(n, pixels), aligned_floats(n, pixels)
    targets, expected_targets = np.zeros(n, np.uint8), np.zeros(n, np.uint8)
    gather_reference(images, labels, order, expected, expected_targets)
    gather(images, labels, order, inputs, targets)
    assert inputs.tobytes() == expected.tobytes()
    assert targets.tobytes() == expected_targets.tobytes()


def test_gather_maps_black_to_zero_and_white_to_one_and_grey_to_the_nearest_float() -> None:
    images = np.arange(256, dtype=np.uint8).reshape(1, 256)
    inputs, target = aligned_floats(1, 256), np.zeros(1, np.uint8)
    gather(images, np.array([7], np.uint8), np.zeros(1, np.int64), inputs, target)
    assert inputs[0].tolist() == [np.float32(value / 255) for value in range(256)]
    assert target[0] == 7


@compiles_at_first
@given(
    state=hnp.arrays(np.float32, (2, 37), elements=floats32),
    gradient=hnp.arrays(np.float32, 37, elements=floats32),
    rate=st.floats(0, 10, width=32),
    momentum=st.floats(0, 1, width=32),
)
def test_sgd_momentum_has_its_twins_bits_for_any_numbers(
    state: Floats, gradient: Floats, rate: float, momentum: float
) -> None:
    settings_ = np.float32(rate), np.float32(momentum)
    new_state, expected = np.empty_like(state), np.empty_like(state)
    with np.errstate(all="ignore"):
        sgd_momentum_reference(state, gradient, *settings_, expected)
    sgd_momentum(state, gradient, *settings_, new_state)
    assert same_bits(new_state, expected)


def test_sgd_momentum_does_not_fuse_product_and_sum() -> None:
    # (1 + 2^-12)^2 needs 25 bits: rounded before the sum it loses its last term, fused it does not.
    factor = np.float32(1 + 2**-12)
    state = np.full((2, 64), factor, np.float32)
    new_state = np.empty_like(state)
    sgd_momentum(state, np.full(64, -1, np.float32), factor, factor, new_state)
    assert (new_state[1] == np.float32(2**-11)).all()


@pytest.mark.parametrize("n", [1, 15, 16, 17, 1000])
def test_sgd_momentum_has_its_twins_bits_at_every_length(n: int) -> None:
    state, gradient = normal(n, 2, n), normal(n + 1, n)
    new_state, expected = np.empty_like(state), np.empty_like(state)
    sgd_momentum_reference(state, gradient, np.float32(0.1), np.float32(0.9), expected)
    sgd_momentum(state, gradient, np.float32(0.1), np.float32(0.9), new_state)
    assert new_state.tobytes() == expected.tobytes()


@pytest.mark.parametrize("shape", [(1,), (3, 5), (512, 784)])
def test_aligned_floats_start_on_a_cache_line(shape: tuple[int, ...]) -> None:
    array = aligned_floats(*shape)
    assert array.ctypes.data % 64 == 0
    assert array.shape == shape
    assert array.dtype == np.float32
    assert array.flags.c_contiguous


def test_padded_rounds_up_to_whole_cache_lines() -> None:
    assert [padded(n) for n in (0, 1, 16, 17, 200)] == [0, 16, 16, 32, 208]


def test_a_kernel_compiles_without_a_cache_where_no_folder_is_writable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked_for: list[bool] = []
    njit = cast("Callable[..., object]", numba.njit)

    def njit_without_cache(*, cache: bool, **flags: object) -> object:
        asked_for.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return njit(cache=False, **flags)

    def double(values: NDArray[np.float32]) -> float:
        return float(values[0] * 2)

    monkeypatch.setattr(numba, "njit", njit_without_cache)
    assert compiled(double)(np.array([21], np.float32)) == 42
    assert asked_for == [True, False]
