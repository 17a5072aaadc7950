"""Sums of gradients: one pass over up to three parts, always in the given order.

Each plain function is the specification of its compiled twin, and the oracle of its tests. Shapes
are (n,), dtype float32, contiguous. ``total`` may be ``own`` or ``total`` itself for in-place
sums, but may not overlap any array otherwise.
"""

from collections.abc import Callable, Sequence
from typing import Final, cast

import numba
import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
"""Shape (n,), float32, contiguous."""


def add_one_reference(total: Vector, own: Vector, first: Vector) -> None:
    """Set ``total = own + first``."""
    for i in range(total.shape[0]):
        total[i] = own[i] + first[i]


def add_two_reference(total: Vector, own: Vector, first: Vector, second: Vector) -> None:
    """Set ``total = (own + first) + second``."""
    for i in range(total.shape[0]):
        total[i] = (own[i] + first[i]) + second[i]


def add_three_reference(
    total: Vector, own: Vector, first: Vector, second: Vector, third: Vector
) -> None:
    """Set ``total = ((own + first) + second) + third``."""
    for i in range(total.shape[0]):
        total[i] = ((own[i] + first[i]) + second[i]) + third[i]


def divide_reference(total: Vector, divisor: np.float32) -> None:
    """Set ``total = total / divisor``. A product with the reciprocal would round twice."""
    for i in range(total.shape[0]):
        total[i] = total[i] / divisor


# fastmath stays off: it would let LLVM reassociate or multiply by a reciprocal, and nodes with
# different CPUs would then disagree in the last bit.
_compile: Final = numba.njit(cache=True, fastmath=False, nogil=True)
add_one: Final = cast("Callable[[Vector, Vector, Vector], None]", _compile(add_one_reference))
add_two: Final = cast(
    "Callable[[Vector, Vector, Vector, Vector], None]", _compile(add_two_reference)
)
add_three: Final = cast(
    "Callable[[Vector, Vector, Vector, Vector, Vector], None]", _compile(add_three_reference)
)
_divide: Final = cast("Callable[[Vector, np.float32], None]", _compile(divide_reference))


def sum_parts(total: Vector, own: Vector, parts: Sequence[Vector]) -> None:
    """Set ``total = own + parts[0] + parts[1] + ...``, added from left to right.

    The compiled loops do not check lengths, so this does.
    """
    assert all(part.shape == total.shape for part in parts)
    assert own.shape == total.shape
    if not parts:
        np.copyto(total, own)
        return
    for at in range(0, len(parts), 3):
        # From the second pass on, what was summed so far stands first: the order is kept.
        _add_up_to_three(total, own if at == 0 else total, parts[at : at + 3])


def divide(total: Vector, divisor: int) -> None:
    """Divide in place by ``divisor``, from 1, rounded to float32 first."""
    assert divisor >= 1
    _divide(total, np.float32(divisor))


def sum_parts_reference(total: Vector, own: Vector, parts: Sequence[Vector]) -> None:
    """Do what ``sum_parts`` does with numpy alone."""
    np.copyto(total, own)
    for part in parts:
        np.add(total, part, out=total)


def warm() -> None:
    """Compile everything, or load it from the cache, so that no first chunk waits for it."""
    total, own = np.zeros(1, np.float32), np.zeros(1, np.float32)
    for count in (1, 2, 3):
        sum_parts(total, own, [own] * count)
    divide(total, 1)


def _add_up_to_three(total: Vector, own: Vector, parts: Sequence[Vector]) -> None:
    """Add one, two or three parts in one pass."""
    match parts:
        case [first]:
            add_one(total, own, first)
        case [first, second]:
            add_two(total, own, first, second)
        case [first, second, third]:
            add_three(total, own, first, second, third)
        case _:
            raise AssertionError(f"{len(parts)} parts in one pass")
