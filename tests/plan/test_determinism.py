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
GOLDEN = {
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
