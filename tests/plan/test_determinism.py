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
        "a2434fcfcfb2a6603ca368a8858fd974 459d33313e1ab18f95b6d447d715fba5 "
        "c582e63c3573eb13d20c18a0df24ed9a"
    ),
    "unequal nodes, exact search": (
        "6cab53bbaba2611c23296a60f1a79981 7f6034845723e6d3b7e587ee5657099e "
        "b7770e35938b439ffab021db09b75c72"
    ),
    "slow pairs, exact search": (
        "4f5d213f3702c654c76c13644bb78302 db43526487583995376745cd6e28d7a8 "
        "d100693ded6c6b3e6f52f740d0bc9632"
    ),
    "unequal nodes, growth": (
        "3b5ac549cb620a43c18ee6fa517db57f 224381e44efea21a2a84b64e78241075 "
        "da396beb68ea840ee5a7df40a9e6cc4c"
    ),
    "slow pairs, growth": (
        "cfd8102295e5c16ed11db44a83c65ed1 f1e2e4ddc778364ac14812889c4cd68c "
        "cb1fce8f2de4decc284cfc83ee678c65"
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
