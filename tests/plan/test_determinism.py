"""One view gives one plan: whatever the order of the inputs, whatever PYTHONHASHSEED."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HASH_SEEDS = ("0", "1", "42")
SHUFFLES = 1_002

SCRIPT = Path(__file__).with_name("plan_digests.py")

# Of the view, of the plan over all members, of the plan without one of them. A change here means
# that nodes of this version and of the one before cannot plan together: raise PROTOCOL_VERSION.
GOLDEN: dict[str, str] = {
    "equal nodes, exact search": (
        "a580202262d0672905264c403da8dfd5 4fab38649eb56dd21d22e16f623a7eb5 "
        "bc2c909ba6f528b48df69c735ea819d1"
    ),
    "unequal nodes, exact search": (
        "b506b2b01ceb9653d11ee1ce27b3449c 3c68cf610933982fe0b76934f7c0f55e "
        "e1b88e7b3e936a21077b58d0f23f29d5"
    ),
    "slow pairs, exact search": (
        "29fb0bd52344e5abf3fe43607b3a22f7 1ef4d520c317102db8b4a20268f10fce "
        "895eafff808bd1c3374376df07f4db98"
    ),
    "unequal nodes, growth": (
        "916ed64c58590ba3866244983550b1d3 915a8b7fdb4d669cf8eb156f26153854 "
        "e9cdd6399f4d7f47451ba6b3a8042904"
    ),
    "slow pairs, growth": (
        "792ae5a7b059760ec3cff8764f502011 63e7821c0b21f23aa864f32565e5de3a "
        "3917e43502e6d2b3fb634d82164e2f5b"
    ),
}


@pytest.fixture(scope="module")
def digests() -> list[dict[str, list[str]]]:
    """Return what each process found: for each case its distinct digests."""
    share = str(SHUFFLES // len(HASH_SEEDS))
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), seed, share],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in HASH_SEEDS
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(HASH_SEEDS)
    return [json.loads(output) for output in outputs]


def test_a_thousand_shuffled_inputs_and_three_hash_seeds_give_one_plan_per_view(
    digests: list[dict[str, list[str]]],
) -> None:
    for name in GOLDEN:
        found = {digest for process in digests for digest in process[name]}
        assert len(found) == 1, f"{name}: {len(found)} different plans"


@pytest.mark.parametrize("name", GOLDEN)
def test_the_plans_of_this_version_are_the_known_ones(
    name: str, digests: list[dict[str, list[str]]]
) -> None:
    assert digests[0][name] == [GOLDEN[name]]
