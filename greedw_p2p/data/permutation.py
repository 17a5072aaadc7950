"""The order in which an epoch visits the samples.

Integers only, and no library's generator: the order must be the same on every node, whatever
version of numpy it has, and stay the same for ever.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

_WORD: Final = (1 << 64) - 1
_GAMMA: Final = 0x9E3779B97F4A7C15
_FIRST_FACTOR: Final = 0xBF58476D1CE4E5B9
_SECOND_FACTOR: Final = 0x94D049BB133111EB


def epoch_permutation(seed: int, epoch: int, samples: int) -> NDArray[np.int64]:
    """Return the samples' numbers in the order of one epoch, a permutation of range(samples).

    Every position gets a key from a SplitMix64 stream that seed and epoch select, and the samples
    are sorted by key. The generator is a bijection of its counter, so no two keys are equal.

    Source: G. L. Steele, D. Lea, C. H. Flood, OOPSLA 2014, doi 10.1145/2660193.2660195.
    """
    stream = _mixed(_mixed(seed & _WORD) ^ (epoch & _WORD))
    counters = np.arange(1, samples + 1, dtype=np.uint64)
    keys = counters * np.uint64(_GAMMA) + np.uint64(stream)
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(_FIRST_FACTOR)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(_SECOND_FACTOR)
    keys ^= keys >> np.uint64(31)
    return np.argsort(keys, kind="stable")


def _mixed(word: int) -> int:
    """Return the first output of SplitMix64 seeded with ``word``."""
    word = (word + _GAMMA) & _WORD
    word = ((word ^ (word >> 30)) * _FIRST_FACTOR) & _WORD
    word = ((word ^ (word >> 27)) * _SECOND_FACTOR) & _WORD
    return word ^ (word >> 31)
