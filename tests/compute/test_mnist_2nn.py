import math
import tracemalloc
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from greedw_p2p.kernels.arrays import Floats, aligned_floats
from greedw_p2p.kernels.softmax import Labels
from greedw_p2p.limits import KIB
from greedw_p2p.models.mnist_2nn import (
    BUCKETS,
    ELEMENTS,
    PARAMETERS,
    W1_BLOCK_ROWS,
    Arrays,
    Mnist2NN,
    arrays_of,
)

Doubles = NDArray[np.float64]
NAMES = ("w3", "b3", "w2", "b2", "w1", "b1")
SAMPLES_MAX = 64


def nobody(bucket: int) -> None:
    del bucket


def batch(seed: int, samples: int) -> tuple[Floats, Labels]:
    rng = np.random.default_rng(seed)
    inputs = aligned_floats(samples, 784)
    # Digits are mostly black, so are these.
    inputs[...] = rng.random((samples, 784)) * (rng.random((samples, 784)) < 0.2)
    return inputs, rng.integers(0, 10, samples, dtype=np.uint8)


def random_parameters(seed: int) -> Floats:
    parameters = aligned_floats(ELEMENTS)
    Mnist2NN(1).initial_parameters(seed, parameters)
    rng = np.random.default_rng(seed + 1000)
    arrays = arrays_of(parameters)
    for bias in (arrays.b1, arrays.b2, arrays.b3):
        bias[...] = rng.standard_normal(bias.shape) * 0.1
    return parameters


def doubles_of(arrays: Arrays) -> dict[str, Doubles]:
    return {name: getattr(arrays, name).astype(np.float64) for name in NAMES}


def reference(
    arrays: dict[str, Doubles], inputs: NDArray[Any], labels: Labels
) -> tuple[float, int, dict[str, Doubles]]:
    """The model in float64, as a textbook has it: summed loss, correct answers, gradients."""
    x = inputs.astype(np.float64)
    hidden1 = np.maximum(x @ arrays["w1"] + arrays["b1"], 0)
    hidden2 = np.maximum(hidden1 @ arrays["w2"] + arrays["b2"], 0)
    logits = hidden2 @ arrays["w3"] + arrays["b3"]
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probability = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    rows = np.arange(len(x))
    d3 = np.exp(log_probability)
    d3[rows, labels] -= 1
    d2 = (d3 @ arrays["w3"].T) * (hidden2 > 0)
    d1 = (d2 @ arrays["w2"].T) * (hidden1 > 0)
    gradients = {
        "w3": hidden2.T @ d3,
        "b3": d3.sum(axis=0),
        "w2": hidden1.T @ d2,
        "b2": d2.sum(axis=0),
        "w1": x.T @ d1,
        "b1": d1.sum(axis=0),
    }
    correct = int((logits.argmax(axis=1) == labels).sum())
    return -float(log_probability[rows, labels].sum()), correct, gradients


def test_the_reference_gradient_is_the_slope_of_its_loss() -> None:
    inputs, labels = batch(3, 8)
    arrays = doubles_of(arrays_of(random_parameters(3)))
    _, _, gradients = reference(arrays, inputs, labels)
    rng = np.random.default_rng(4)
    # Small, so that no unit crosses the kink of ReLU on the way.
    step = 1e-7
    for name in NAMES:
        # A random direction per array tests all its elements in two evaluations.
        direction = rng.standard_normal(arrays[name].shape)
        high = reference({**arrays, name: arrays[name] + step * direction}, inputs, labels)[0]
        low = reference({**arrays, name: arrays[name] - step * direction}, inputs, labels)[0]
        slope = (high - low) / (2 * step)
        expected = float((gradients[name] * direction).sum())
        assert math.isclose(slope, expected, rel_tol=1e-5)


@pytest.mark.parametrize("samples", [*range(1, 41), SAMPLES_MAX])
def test_loss_and_gradient_are_those_of_the_reference_at_every_batch_size(samples: int) -> None:
    inputs, labels = batch(samples, samples)
    parameters, gradient = random_parameters(samples), aligned_floats(ELEMENTS)
    gradient[...] = np.nan
    score = Mnist2NN(SAMPLES_MAX).gradient(parameters, inputs, labels, gradient, ready=nobody)
    loss_sum, correct, expected = reference(doubles_of(arrays_of(parameters)), inputs, labels)
    assert math.isclose(score.loss_sum, loss_sum, rel_tol=1e-5)
    assert score.correct == correct
    for name in NAMES:
        found = getattr(arrays_of(gradient), name)
        scale = float(np.abs(expected[name]).max())
        np.testing.assert_allclose(found, expected[name], rtol=0, atol=5e-6 * scale, err_msg=name)


def test_scratch_left_by_a_larger_batch_changes_nothing() -> None:
    model, parameters = Mnist2NN(SAMPLES_MAX), random_parameters(1)
    first, second = aligned_floats(ELEMENTS), aligned_floats(ELEMENTS)
    small = batch(2, 5)
    model.gradient(parameters, *small, first, ready=nobody)
    model.gradient(parameters, *batch(3, SAMPLES_MAX), second, ready=nobody)
    model.gradient(parameters, *small, second, ready=nobody)
    assert first.tobytes() == second.tobytes()


def test_accumulating_adds_to_what_is_there() -> None:
    model, parameters = Mnist2NN(SAMPLES_MAX), random_parameters(1)
    parts, total = [aligned_floats(ELEMENTS) for _ in range(2)], aligned_floats(ELEMENTS)
    batches = batch(2, 30), batch(3, 11)
    for part, samples in zip(parts, batches, strict=True):
        model.gradient(parameters, *samples, part, ready=nobody)
    model.gradient(parameters, *batches[0], total, ready=nobody)
    model.gradient(parameters, *batches[1], total, ready=nobody, accumulate=True)
    for array in fields(Arrays)[:6]:
        found, first, second = (
            getattr(arrays_of(vector), array.name) for vector in (total, *parts)
        )
        scale = float(np.abs(found).max())
        np.testing.assert_allclose(found, first + second, rtol=0, atol=1e-6 * scale)


@pytest.mark.parametrize("accumulate", [False, True])
def test_buckets_are_announced_in_order_and_are_final_then(accumulate: bool) -> None:
    model, parameters, gradient = Mnist2NN(32), random_parameters(1), aligned_floats(ELEMENTS)
    model.gradient(parameters, *batch(1, 32), gradient, ready=nobody)
    offsets = [sum(BUCKETS[:bucket]) for bucket in range(len(BUCKETS) + 1)]
    seen: list[tuple[int, bytes]] = []

    def ready(bucket: int) -> None:
        content = gradient[offsets[bucket] : offsets[bucket + 1]].tobytes()
        seen.append((bucket, content))

    model.gradient(parameters, *batch(2, 32), gradient, ready=ready, accumulate=accumulate)
    assert [bucket for bucket, _ in seen] == list(range(len(BUCKETS)))
    assert b"".join(content for _, content in seen) == gradient.tobytes()


def test_the_layout_holds_every_parameter_once_on_cache_lines_of_its_own() -> None:
    vector = aligned_floats(ELEMENTS)
    vector[...] = 0
    arrays = arrays_of(vector)
    for name in NAMES:
        array = getattr(arrays, name)
        array += 1
        assert array.ctypes.data % 64 == 0
        assert array.flags.c_contiguous
    assert PARAMETERS == int(vector.sum()) == 199_210
    assert vector.max() == 1
    assert arrays.w1[W1_BLOCK_ROWS:].ctypes.data % 64 == 0


def test_padding_is_zero_in_parameters_and_gradients() -> None:
    model, parameters, gradient = Mnist2NN(8), random_parameters(1), aligned_floats(ELEMENTS)
    gradient[...] = np.nan
    model.gradient(parameters, *batch(1, 8), gradient, ready=nobody)
    model.gradient(parameters, *batch(2, 8), gradient, ready=nobody, accumulate=True)
    for vector in (parameters, gradient):
        assert np.isfinite(vector).all()
        for name in NAMES:
            getattr(arrays_of(vector), name)[...] = 0
        assert not vector.any()


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_that_is_not_a_number_shows_in_loss_and_gradient(name: str) -> None:
    parameters, gradient = random_parameters(1), aligned_floats(ELEMENTS)
    inputs, labels = batch(1, 8)
    inputs[:, 0] = 1
    getattr(arrays_of(parameters), name).flat[0] = np.nan
    score = Mnist2NN(8).gradient(parameters, inputs, labels, gradient, ready=nobody)
    assert np.isnan(score.loss_sum)
    assert score.correct == 0
    # Backward goes through the layers above: all of their gradients are lost, and say so.
    assert np.isnan(arrays_of(gradient).w3).any()
    assert np.isnan(arrays_of(gradient).b1).any()


def test_scoring_gives_the_figures_of_the_gradient_and_writes_no_parameter() -> None:
    model, parameters, gradient = Mnist2NN(16), random_parameters(1), aligned_floats(ELEMENTS)
    before = parameters.tobytes()
    samples = batch(1, 16)
    assert model.score(parameters, *samples) == model.gradient(
        parameters, *samples, gradient, ready=nobody
    )
    assert parameters.tobytes() == before


def test_initial_parameters_follow_the_seed_and_keep_to_their_bound() -> None:
    first, again, other = (aligned_floats(ELEMENTS) for _ in range(3))
    model = Mnist2NN(1)
    for seed, parameters in ((5, first), (5, again), (6, other)):
        model.initial_parameters(seed, parameters)
    assert first.tobytes() == again.tobytes() != other.tobytes()
    arrays = arrays_of(first)
    for weights in (arrays.w1, arrays.w2, arrays.w3):
        bound = (6 / weights.shape[0]) ** 0.5
        assert 0.99 * bound < np.abs(weights).max() <= np.float32(bound)
        assert math.isclose(float(weights.std()), bound / 3**0.5, rel_tol=0.05)
    assert not any(bias.any() for bias in (arrays.b1, arrays.b2, arrays.b3))


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_step_allocates_nothing_large(accumulate: bool) -> None:
    model, parameters, gradient = Mnist2NN(64), random_parameters(1), aligned_floats(ELEMENTS)
    samples = batch(1, 64)
    model.gradient(parameters, *samples, gradient, ready=nobody)
    tracemalloc.start()
    try:
        model.gradient(parameters, *samples, gradient, ready=nobody, accumulate=accumulate)
        assert tracemalloc.get_traced_memory()[1] < 32 * KIB
    finally:
        tracemalloc.stop()
