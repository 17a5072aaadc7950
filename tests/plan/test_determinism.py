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
        "d28b3758a4039c20b1c13fc480822bbc b1d41d45e8710015e47b25ec8cd5ae32 "
        "e041e9f7dcf13cadef335cc6b245144e"
    ),
    "slow pairs, exact search": (
        "29fb0bd52344e5abf3fe43607b3a22f7 1ef4d520c317102db8b4a20268f10fce "
        "895eafff808bd1c3374376df07f4db98"
    ),
    "unequal nodes, growth": (
        "360e9824233200d4bcc6991d02e4c2ec 3b40140668957b9da2ec47c044e6494f "
        "49d53caf35924b5e642edff598a222b1"
    ),
    "slow pairs, growth": (
        "792ae5a7b059760ec3cff8764f502011 63e7821c0b21f23aa864f32565e5de3a "
        "3686b60cf89215afe1017a24e4844a7e"
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
