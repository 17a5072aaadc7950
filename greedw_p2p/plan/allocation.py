"""Shares: how many work units each node computes, so that all finish together.

Greedy highest averages: each unit goes to the node that would finish it first. With finish times
that grow with the units this minimises the last finish time exactly.
"""

from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace

from greedw_p2p.ids import NodeId
from greedw_p2p.plan.plan import Quota
from greedw_p2p.view import Speed


def allocate(nodes: Sequence[NodeId], units: int, speeds: Iterable[Speed]) -> tuple[Quota, ...]:
    """Split ``units`` among ``nodes``; the parts add up exactly, sorted by node.

    Every node gets at least one unit if there are enough; otherwise the fastest get one each.

    Args:
        nodes: who takes part, in any order, at least one.
        units: size of the round, >= 0.
        speeds: what is known; a node without a speed counts as the median of those with one.
    """
    paces = paces_of(sorted(nodes), speeds)
    shares = split(paces, units)
    return tuple(Quota(node, share) for node, share in zip(sorted(nodes), shares, strict=True))


def paces_of(nodes: Sequence[NodeId], speeds: Iterable[Speed]) -> list[tuple[int, int]]:
    """Return (fixed_ns, unit_ns) of each node, the median of the known where it is unknown."""
    known = {speed.node: (speed.fixed_ns, max(speed.unit_ns, 1)) for speed in speeds}
    present = sorted(known[node] for node in nodes if node in known)
    fixed = sorted(fixed for fixed, _ in present)
    unit = sorted(unit for _, unit in present)
    middle = len(present) // 2
    default = (fixed[middle], unit[middle]) if present else (0, 1)
    return [known.get(node, default) for node in nodes]


def split(paces: Sequence[tuple[int, int]], units: int) -> list[int]:
    """Split ``units`` among nodes with these (fixed_ns, unit_ns); ties to the earlier node."""
    count = len(paces)
    if units < count:
        first_done = sorted((fixed + unit, index) for index, (fixed, unit) in enumerate(paces))
        chosen = {index for _, index in first_done[:units]}
        return [1 if index in chosen else 0 for index in range(count)]
    shares = _proportional_start(paces, units)
    heap = [
        (fixed + (shares[index] + 1) * unit, index) for index, (fixed, unit) in enumerate(paces)
    ]
    heapify(heap)
    for _ in range(units - sum(shares)):
        finish, index = heap[0]
        shares[index] += 1
        heapreplace(heap, (finish + paces[index][1], index))
    return shares


def makespan_ns(paces: Sequence[tuple[int, int]], shares: Sequence[int]) -> int:
    """Return when the last node with work finishes, 0 if none has any."""
    return max(
        (fixed + share * unit for (fixed, unit), share in zip(paces, shares, strict=True) if share),
        default=0,
    )


def _proportional_start(paces: Sequence[tuple[int, int]], units: int) -> list[int]:
    """Return shares that the greedy rule is sure to reach, so that few units remain to hand out.

    These are the units that every node finishes by a time before which not all units can be
    finished: found by bisection. The greedy rule hands them out first, in some order.
    """

    def finished(time_ns: int) -> list[int]:
        return [max((time_ns - fixed) // unit, 1) for fixed, unit in paces]

    low, high = 0, max(fixed + units * unit for fixed, unit in paces)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(finished(middle)) <= units:
            low = middle
        else:
            high = middle - 1
    return finished(low)
