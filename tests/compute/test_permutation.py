import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from greedw_p2p.data.permutation import epoch_permutation

seeds = st.integers(min_value=0, max_value=2**62 - 1)
epochs = st.integers(min_value=0, max_value=2**40)


@given(seed=seeds, epoch=epochs, samples=st.integers(min_value=0, max_value=500))
def test_every_sample_occurs_exactly_once(seed: int, epoch: int, samples: int) -> None:
    assert sorted(epoch_permutation(seed, epoch, samples).tolist()) == list(range(samples))


@given(seed=seeds, epoch=epochs)
def test_the_order_differs_from_epoch_to_epoch_and_from_seed_to_seed(seed: int, epoch: int) -> None:
    order = epoch_permutation(seed, epoch, 50).tolist()
    assert order != epoch_permutation(seed, epoch + 1, 50).tolist()
    assert order != epoch_permutation(seed + 1, epoch, 50).tolist()


def test_the_order_is_the_one_that_every_version_and_host_must_have() -> None:
    assert epoch_permutation(0, 0, 10).tolist() == [0, 7, 8, 2, 5, 9, 4, 6, 3, 1]
    assert epoch_permutation(2**62 - 1, 3, 8).tolist() == [2, 0, 5, 1, 7, 4, 6, 3]
    weights = np.arange(1, 60_001, dtype=np.int64)
    assert int((epoch_permutation(1, 4, 60_000) * weights).sum()) == 53_929_610_365_268


def test_the_order_follows_splitmix64_as_published() -> None:
    # A second implementation with Python's unbounded integers, from the paper's listing.
    def outputs(seed: int, count: int) -> list[int]:
        mask, words = 2**64 - 1, list[int]()
        for _ in range(count):
            seed = (seed + 0x9E3779B97F4A7C15) & mask
            word = seed
            word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & mask
            word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
            words.append(word ^ (word >> 31))
        return words

    # The first outputs for seed 1234567, as the reference implementation gives them.
    assert outputs(1234567, 2) == [6457827717110365317, 3203168211198807973]
    stream = outputs(outputs(77, 1)[0] ^ 5, 1)[0]
    keys = outputs(stream, 300)
    expected = sorted(range(300), key=lambda sample: keys[sample])
    assert epoch_permutation(77, 5, 300).tolist() == expected
