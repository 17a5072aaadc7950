from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from greedw_p2p.kernels import summation

Vector = NDArray[np.float32]

SIZES = range(66)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    summation.warm()


def vectors(count: int, size: int, offset: int, seed: int) -> list[Vector]:
    """Slices that start ``offset`` elements into their memory, with exponents far apart."""
    rng = np.random.default_rng(seed)
    found: list[Vector] = []
    for _ in range(count):
        scale = np.exp2(rng.integers(-30, 30, size + offset))
        values = (rng.standard_normal(size + offset) * scale).astype(np.float32)
        found.append(values[offset:])
    return found


def same_bits(left: Vector, right: Vector) -> bool:
    return left.tobytes() == right.tobytes()


@pytest.mark.parametrize("parts", range(9))
@pytest.mark.parametrize("offset", [0, 1, 3, 7])
def test_sum_is_bit_equal_to_numpy_for_all_small_sizes_and_odd_offsets(
    parts: int, offset: int
) -> None:
    for size in SIZES:
        own, *others = vectors(parts + 1, size, offset, seed=size)
        total, expected = np.empty(size, np.float32), np.empty(size, np.float32)
        summation.sum_parts(total, own, others)
        summation.sum_parts_reference(expected, own, others)
        assert same_bits(total, expected), f"size {size}"


def test_sum_depends_on_the_order_of_the_parts_as_it_must() -> None:
    big = np.full(1, 2.0**24, np.float32)
    one = np.ones(1, np.float32)
    total = np.empty(1, np.float32)
    summation.sum_parts(total, big, [one, -big])
    assert total[0] == 0.0
    summation.sum_parts(total, big, [-big, one])
    assert total[0] == 1.0


def test_sum_in_place_of_the_own_part_is_the_same() -> None:
    own, *others = vectors(6, 65, 1, seed=1)
    expected = np.empty_like(own)
    summation.sum_parts_reference(expected, own, others)
    summation.sum_parts(own, own, others)
    assert same_bits(own, expected)


@pytest.mark.parametrize(
    ("compiled_loop", "reference", "parts"),
    [
        (summation.add_one, summation.add_one_reference, 1),
        (summation.add_two, summation.add_two_reference, 2),
        (summation.add_three, summation.add_three_reference, 3),
    ],
)
def test_compiled_loop_is_bit_equal_to_its_plain_twin(
    compiled_loop: object, reference: object, parts: int
) -> None:
    assert callable(compiled_loop)
    assert callable(reference)
    for size in SIZES:
        operands = vectors(parts + 1, size, 1, seed=size)
        total, expected = np.empty(size, np.float32), np.empty(size, np.float32)
        compiled_loop(total, *operands)
        reference(expected, *operands)
        assert same_bits(total, expected), f"size {size}"


@pytest.mark.parametrize("divisor", [1, 3, 32, 60_000, 16_777_217])
def test_division_rounds_once_and_is_bit_equal_to_numpy(divisor: int) -> None:
    for size in SIZES:
        (total,) = vectors(1, size, 1, seed=size)
        expected = total / np.float32(divisor)
        plain = total.copy()
        summation.divide(total, divisor)
        summation.divide_reference(plain, np.float32(divisor))
        assert same_bits(total, expected)
        assert same_bits(plain, expected)


def test_not_a_number_and_infinity_are_passed_on() -> None:
    own = np.array([np.nan, np.inf, np.inf, 1], np.float32)
    other = np.array([1, -np.inf, 1, 1], np.float32)
    total = np.empty(4, np.float32)
    summation.sum_parts(total, own, [other])
    assert np.isnan(total[:2]).all()
    assert total[2] == np.inf


@pytest.mark.parametrize("lengths", [(4, 3, 4), (4, 4, 5)])
def test_operands_of_unequal_length_are_refused(lengths: Sequence[int]) -> None:
    total, own, part = (np.zeros(n, np.float32) for n in lengths)
    with pytest.raises(AssertionError):
        summation.sum_parts(total, own, [part])
