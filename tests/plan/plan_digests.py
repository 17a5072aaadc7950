"""Prints, as JSON, the digests of the plans of some views, each built from shuffled inputs.

Run as a script, because a plan must not depend on PYTHONHASHSEED either, and only a process of its
own has another one:

    python tests/plan/plan_digests.py SEED SHUFFLES
"""

import json
import random
import sys

from greedw_p2p.config import Address, Config, Member
from greedw_p2p.ids import Incarnation, NodeId
from greedw_p2p.links.cell import LinkCell
from greedw_p2p.plan.fold import genesis_view, next_view
from greedw_p2p.plan.planner import make_plan
from greedw_p2p.view import RoundReport, ViewDelta

CASES = {
    "equal nodes, exact search": (5, 0, False),
    "unequal nodes, exact search": (6, 30, False),
    "slow pairs, exact search": (6, 30, True),
    "unequal nodes, growth": (7, 30, False),
    "slow pairs, growth": (11, 30, True),
}
"""Nodes, spread of their cost codes, whether two sites are joined by slow pairs."""


def inputs(name: str) -> tuple[list[Member], list[LinkCell], list[RoundReport]]:
    """Return members, cells and reports of a case: always the same."""
    count, spread, slow_pairs = CASES[name]
    rng = random.Random(name)  # noqa: S311 - seeded, not secret
    nodes = [NodeId(f"{rng.getrandbits(128):032x}") for _ in range(count)]
    codes = {node: 30 + rng.randrange(spread + 1) for node in nodes}
    site = {node: rng.randrange(2) if slow_pairs else 0 for node in nodes}
    members = [
        Member(node, Incarnation(1), f"node-{n}", Address("127.0.0.1", 1_000 + n))
        for n, node in enumerate(nodes)
    ]
    cells = [
        LinkCell(
            writer,
            peer,
            Incarnation(1),
            rng.randrange(9),
            rng.randrange(8, 10) + 30 * abs(site[writer] - site[peer]),
            max(codes[writer], codes[peer]) + 20 * abs(site[writer] - site[peer]),
        )
        for writer in nodes
        for peer in nodes
        if writer != peer
    ]
    reports = [
        RoundReport(node, 10, rng.randrange(500, 9_000), rng.randrange(400), 0, 0, 0)
        for node in nodes
    ]
    return members, cells, reports


def plan_digest(name: str, rng: random.Random) -> str:
    """Return the digests of a view and two plans from inputs shuffled anew."""
    members, cells, reports = inputs(name)
    for part in (members, cells, reports):
        rng.shuffle(part)
    config = Config(tuple(members))
    # A set, because its order changes with PYTHONHASHSEED.
    delta = ViewDelta(tuple(set(cells)), tuple(reports))
    view = next_view(genesis_view(config), config, delta)
    nodes = [member.node for member in members]
    rng.shuffle(nodes)
    whole = make_plan(view, nodes, 1_000, 796_840)
    without = make_plan(view, [node for node in nodes if node != min(nodes)], 1_000, 796_840)
    return " ".join((view.digest().hex(), whole.digest().hex(), without.digest().hex()))


def main() -> None:
    """Print {case: sorted distinct digests}."""
    rng = random.Random(int(sys.argv[1]))  # noqa: S311 - seeded, not secret
    shuffles = int(sys.argv[2])
    found: dict[str, set[str]] = {name: set() for name in CASES}
    for shuffle in range(shuffles):
        name = tuple(CASES)[shuffle % len(CASES)]
        found[name].add(plan_digest(name, rng))
    result = {name: sorted(digests) for name, digests in found.items()}
    print(json.dumps(result, indent=1))  # noqa: T201 - this is what it is run for


if __name__ == "__main__":
    main()
