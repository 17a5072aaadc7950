"""What a computation costs before its first sample: timed once, when a job is loaded.

Shares that follow time per sample alone never settle where much of a round's time is fixed: the
node with few samples looks slow per sample and gets fewer still. So a worker times computations of
a few sizes and fits a line through them. Of several passes the least times count: delays only ever
add, and workers of one host load their jobs at the same moment. The result is a ratio, which a
slower clock or a busy host changes less than either of its parts.
"""

from collections.abc import Callable, Sequence
from typing import Final

SAMPLES_MAX: Final = 128
"""Largest computation that is timed: a share of a round, not a whole large one."""

PASSES_MAX: Final = 9
BUDGET_NS: Final = 250_000_000
"""No further computation is timed when this is used up, but the two smallest always are."""


def fixed_units(time_of: Callable[[int], int], samples: int) -> float:
    """Return the fixed cost in units of what one more sample costs, from 0 to ``SAMPLES_MAX``.

    Args:
        time_of: computes so many samples, once warm, and returns the nanoseconds it took.
        samples: the most samples that can be asked for; too few to tell anything give 0.
    """
    largest = min(samples, SAMPLES_MAX)
    # A single sample is left out: as a product of a vector it may take another path than a batch.
    sizes = [size for size in (largest // 8, largest // 4, largest // 2, largest) if size > 1]
    if len(sizes) < 2:
        return 0.0
    return min(_intercept_in_slopes(_least_times(time_of, sizes)), float(largest))


def _least_times(time_of: Callable[[int], int], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return (size, least nanoseconds) of the sizes that the budget allows, at least two."""
    least: dict[int, int] = {}
    spent = 0
    for _ in range(PASSES_MAX):
        for size in sizes:
            if spent >= BUDGET_NS and len(least) >= 2:
                return sorted(least.items())
            elapsed = time_of(size)
            spent += elapsed
            least[size] = min(elapsed, least.get(size, elapsed))
    return sorted(least.items())


def _intercept_in_slopes(points: Sequence[tuple[int, int]]) -> float:
    """Return where the line of least squares meets zero time, in units before zero samples."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points)
    slope /= sum((x - mean_x) ** 2 for x, _ in points)
    if slope <= 0:
        return float("inf")
    return max(mean_y / slope - mean_x, 0.0)
