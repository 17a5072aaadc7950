"""The logarithmic scale of published costs: 8 codes to a doubling, in integers only.

A code stands for ``base x 2**(code / 8)``. Every node turns codes into the same integers, because
the table below comes from integer square roots and never from a float.
"""

from bisect import bisect_right
from math import isqrt
from typing import Final

from greedw_p2p.limits import MIB
from greedw_p2p.links.cell import CODE_MAX, CODE_UNKNOWN

CODES_PER_DOUBLING: Final = 8

COST_NS_PER_MIB_FASTEST: Final = 2**21
"""Code 0 of a cost, 2.1 ms per MiB (4 Gbit/s). Beyond that our own CPU is the limit, not the link,
so faster links are not told apart: on loopback the differences are noise."""

LATENCY_US_SHORTEST: Final = 16
"""Code 0 of a latency. Shorter ones drown in the time that a wake-up takes."""

COST_CODE_DEFAULT: Final = 0
LATENCY_CODE_DEFAULT: Final = 0
"""What is assumed where nothing was measured anywhere: the best, so that it is tried."""

_FRACTION_BITS: Final = 64


def _sixteenth_powers() -> tuple[int, ...]:
    """Return 2**(k/16) for k in 0..15, with ``_FRACTION_BITS`` binary places, rounded down."""
    one = 1 << _FRACTION_BITS
    root = 2 * one
    for _ in range(4):
        root = isqrt(root << _FRACTION_BITS)
    powers = [one]
    for _ in range(15):
        powers.append(powers[-1] * root >> _FRACTION_BITS)
    return tuple(powers)


_POWERS: Final = _sixteenth_powers()


def _scaled(base: int, sixteenths: int) -> int:
    """Return ``base x 2**(sixteenths / 16)``, rounded to the nearest integer."""
    doublings, rest = divmod(sixteenths, 16)
    return ((base * _POWERS[rest] << doublings) + (1 << (_FRACTION_BITS - 1))) >> _FRACTION_BITS


def _values(base: int) -> tuple[int, ...]:
    return tuple(_scaled(base, 2 * code) for code in range(CODE_MAX + 1))


def _bounds(base: int) -> tuple[int, ...]:
    """Return where each code but the first begins: half a step below its value."""
    return tuple(_scaled(base, 2 * code - 1) for code in range(1, CODE_MAX + 1))


_COSTS: Final = _values(COST_NS_PER_MIB_FASTEST)
_COST_BOUNDS: Final = _bounds(COST_NS_PER_MIB_FASTEST)
_LATENCIES: Final = _values(LATENCY_US_SHORTEST)
_LATENCY_BOUNDS: Final = _bounds(LATENCY_US_SHORTEST)

assert len(set(_LATENCIES)) == len(_LATENCIES), "codes of short latencies must differ"
assert _COSTS[-1] * 1024 < 2**62, "a load of 1,024 edges must fit 64 bits"


def cost_ns_per_mib(code: int) -> int:
    """Return the cost that a code stands for, the default for ``CODE_UNKNOWN``."""
    return _COSTS[COST_CODE_DEFAULT if code == CODE_UNKNOWN else code]


def code_of_cost(ns_per_mib: int) -> int:
    """Return the code nearest to a cost (by ratio); the ends of the scale beyond it."""
    return bisect_right(_COST_BOUNDS, ns_per_mib)


def latency_us(code: int) -> int:
    """Return the latency that a code stands for, the default for ``CODE_UNKNOWN``."""
    return _LATENCIES[LATENCY_CODE_DEFAULT if code == CODE_UNKNOWN else code]


def code_of_latency(microseconds: int) -> int:
    """Return the code nearest to a latency (by ratio); the ends of the scale beyond it."""
    return bisect_right(_LATENCY_BOUNDS, microseconds)


def transfer_cost_ns_per_mib(nbytes: int, elapsed_us: int) -> int:
    """Return the cost of a transfer; one that took no measurable time counts as 1 us."""
    return max(elapsed_us, 1) * 1000 * MIB // max(nbytes, 1)
