import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from greedw_p2p.ids import JobId
from greedw_p2p.jobs.job import Gradient, Job, Partial, StateBytes
from greedw_p2p.jobs.registry import DEFAULTS, MNIST_2NN, open_data, open_job
from greedw_p2p.jobs.spec import JobSpec
from greedw_p2p.jobs.training import BLOCK_SAMPLES
from greedw_p2p.kernels import momentum, pixels, relu, softmax
from greedw_p2p.kernels.arrays import aligned_floats
from greedw_p2p.models.mnist_2nn import ELEMENTS

MakeSpec = Callable[..., JobSpec]


def nobody(bucket: int) -> None:
    del bucket


def new_state(job: Job) -> StateBytes:
    return aligned_floats(job.layout.state_bytes // 4).view(np.uint8)


def initial_state(job: Job) -> StateBytes:
    state = new_state(job)
    job.initial_state(state)
    return state


def share(
    job: Job, state: StateBytes, round_number: int, start: int, count: int
) -> tuple[Partial, Gradient]:
    gradient = aligned_floats(job.layout.gradient.elements)
    gradient[...] = np.nan
    return job.compute(state, round_number, start, count, gradient=gradient, ready=nobody), gradient


def train(job: Job, spec: JobSpec, rounds: int) -> tuple[StateBytes, list[float]]:
    """The states a single node goes through, as the root's division and the flip make them."""
    state, other, losses = initial_state(job), new_state(job), list[float]()
    for round_number in range(rounds):
        start, stop = spec.batch_range(round_number)
        partial, gradient = share(job, state, round_number, start, stop - start)
        gradient /= np.float32(partial.samples)
        job.apply(state, gradient, other)
        state, other = other, state
        losses.append(partial.loss_sum / partial.samples)
    return state, losses


def assert_close(found: Gradient, expected: Gradient) -> None:
    scale = float(np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6 * scale)


@pytest.fixture(scope="module")
def job() -> Job:
    return open_job(spec_of_module())


def spec_of_module() -> JobSpec:
    facts = open_data(MNIST_2NN, "")
    return JobSpec(JobId("job-1"), MNIST_2NN, "", facts.digest, 8000, 2000, 2, 300, 0.15, 0.9, 1)


def test_defaults_reach_a_good_accuracy_on_the_held_out_digits(make_spec: MakeSpec) -> None:
    defaults = DEFAULTS[MNIST_2NN]
    spec = make_spec(epochs=defaults.epochs, batch=defaults.batch, momentum=defaults.momentum)
    job = open_job(spec)
    state, losses = train(job, spec, spec.rounds)
    score = job.evaluate(state, 0, spec.held_out)
    assert spec.rounds <= 320
    assert score.samples == 2000
    assert score.correct / score.samples >= 0.945
    assert losses[-1] < 0.05 < losses[0]


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cuts=st.lists(st.integers(0, 300), max_size=6), round_number=st.integers(0, 52))
def test_any_partition_of_a_round_has_the_rounds_sum(
    job: Job, cuts: list[int], round_number: int
) -> None:
    spec, state = spec_of_module(), initial_state(job)
    start, stop = spec.batch_range(round_number)
    whole, expected = share(job, state, round_number, start, stop - start)
    edges = sorted({start, stop, *(min(start + cut, stop) for cut in cuts)})
    parts = [
        share(job, state, round_number, low, high - low) for low, high in itertools.pairwise(edges)
    ]
    assert_close(np.sum([gradient for _, gradient in parts], axis=0), expected)
    assert sum(partial.samples for partial, _ in parts) == whole.samples
    assert sum(partial.correct for partial, _ in parts) == whole.correct
    loss_sum = sum(partial.loss_sum for partial, _ in parts)
    assert math.isclose(loss_sum, whole.loss_sum, rel_tol=1e-6)


def test_an_epoch_consumes_every_sample_once_in_an_order_of_its_own(job: Job) -> None:
    spec, state = spec_of_module(), initial_state(job)
    by_epoch: list[list[float]] = []
    for epoch in range(2):
        rounds = range(epoch * spec.rounds_per_epoch, (epoch + 1) * spec.rounds_per_epoch)
        ranges = [spec.batch_range(round_number) for round_number in rounds]
        by_epoch.append(
            [
                share(job, state, round_number, start, stop - start)[0].loss_sum
                for round_number, (start, stop) in zip(rounds, ranges, strict=True)
            ]
        )
    # The state is the same, so both epochs come to the loss of the whole set, round by round not.
    assert math.isclose(sum(by_epoch[0]), sum(by_epoch[1]), rel_tol=1e-6)
    assert not math.isclose(by_epoch[0][0], by_epoch[1][0], rel_tol=1e-6)


def test_a_share_larger_than_a_block_is_the_sum_of_its_parts(job: Job) -> None:
    state, count = initial_state(job), 2 * BLOCK_SAMPLES + 77
    whole, gradient = share(job, state, 0, 100, count)
    parts = [
        share(job, state, 0, 100 + first, min(BLOCK_SAMPLES, count - first))
        for first in range(0, count, BLOCK_SAMPLES)
    ]
    assert_close(gradient, np.sum([part for _, part in parts], axis=0))
    assert whole.samples == count
    assert whole.correct == sum(partial.correct for partial, _ in parts)


@pytest.mark.parametrize("count", [0, 1, 64, BLOCK_SAMPLES, BLOCK_SAMPLES + 1, 3000])
def test_every_bucket_is_announced_once_in_order_when_it_is_final(job: Job, count: int) -> None:
    state, layout = initial_state(job), job.layout.gradient
    gradient = aligned_floats(layout.elements)
    gradient[...] = np.nan
    seen: list[tuple[int, bytes]] = []

    def ready(bucket: int) -> None:
        first = layout.offset_of(bucket)
        seen.append((bucket, gradient[first : first + layout.buckets[bucket]].tobytes()))

    job.compute(state, 0, 0, count, gradient=gradient, ready=ready)
    assert [bucket for bucket, _ in seen] == list(range(len(layout.buckets)))
    assert b"".join(content for _, content in seen) == gradient.tobytes()


def test_no_samples_give_zeros(job: Job) -> None:
    partial, gradient = share(job, initial_state(job), 0, 0, 0)
    assert partial == Partial(0, 0.0, 0)
    assert not gradient.any()
    assert job.evaluate(initial_state(job), 2000, 0) == Partial(0, 0.0, 0)


def test_evaluation_in_any_parts_scores_every_held_out_sample_once(job: Job) -> None:
    state = initial_state(job)
    whole = job.evaluate(state, 0, 2000)
    edges = [0, 1, 400, 1300, 1999, 2000]
    parts = [job.evaluate(state, low, high - low) for low, high in itertools.pairwise(edges)]
    assert whole.samples == 2000
    assert sum(partial.correct for partial in parts) == whole.correct
    loss_sum = sum(partial.loss_sum for partial in parts)
    assert math.isclose(loss_sum, whole.loss_sum, rel_tol=1e-6)


def test_the_same_rounds_give_the_same_bits_in_another_instance_of_the_job(job: Job) -> None:
    spec = spec_of_module()
    first, _ = train(job, spec, 5)
    second, _ = train(open_job(spec), spec, 5)
    assert first.tobytes() == second.tobytes()


def test_apply_is_momentum_on_parameters_and_velocity(job: Job) -> None:
    spec = spec_of_module()
    before, _ = train(job, spec, 3)
    result = np.random.default_rng(1).standard_normal(ELEMENTS, dtype=np.float32)
    untouched, after = before.tobytes(), new_state(job)
    job.apply(before, result, after)
    parameters, velocity = before.view(np.float32).reshape(2, -1)
    expected_velocity = np.float32(spec.momentum) * velocity + result
    expected = parameters - np.float32(spec.learning_rate) * expected_velocity
    assert after.tobytes() == expected.tobytes() + expected_velocity.tobytes()
    assert before.tobytes() == untouched


def test_a_result_that_is_not_a_number_shows_in_the_next_loss(job: Job) -> None:
    state, after = initial_state(job), new_state(job)
    result = np.full(ELEMENTS, np.nan, np.float32)
    job.apply(state, result, after)
    partial, gradient = share(job, after, 1, 0, 10)
    assert np.isnan(partial.loss_sum)
    assert np.isnan(gradient).any()
    assert np.isnan(job.evaluate(after, 0, 10).loss_sum)


def test_an_earlier_round_can_be_computed_again(job: Job) -> None:
    state = initial_state(job)
    first = share(job, state, 0, 0, 20)
    share(job, state, 30, 0, 20)
    again = share(job, state, 0, 0, 20)
    assert first[0] == again[0]
    assert first[1].tobytes() == again[1].tobytes()


def test_the_founders_state_has_no_velocity(job: Job) -> None:
    parameters, velocity = initial_state(job).view(np.float32).reshape(2, -1)
    assert parameters.any()
    assert not velocity.any()


def test_nothing_compiles_after_warming(make_spec: MakeSpec) -> None:
    job = open_job(make_spec())
    job.warm()
    kernels: list[Any] = [
        momentum.sgd_momentum,
        pixels.gather,
        relu.add_bias_relu,
        relu.relu_backward,
        softmax.softmax_cross_entropy,
    ]
    compiled = [len(kernel.signatures) for kernel in kernels]
    state, after = initial_state(job), new_state(job)
    _, gradient = share(job, state, 0, 5, BLOCK_SAMPLES + 3)
    job.apply(state, gradient, after)
    job.evaluate(after, 3, BLOCK_SAMPLES + 3)
    assert [len(kernel.signatures) for kernel in kernels] == compiled
    assert all(compiled)
