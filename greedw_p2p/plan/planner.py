"""The plan of one attempt: a pure function of the view, the participants and the sizes."""

from collections.abc import Iterable
from typing import Final

from greedw_p2p.ids import NodeId
from greedw_p2p.limits import CHUNK_BYTES_MAX, KIB, MIB
from greedw_p2p.links.scale import COST_NS_PER_MIB_FASTEST
from greedw_p2p.plan.allocation import allocate
from greedw_p2p.plan.network import Network
from greedw_p2p.plan.plan import Plan, Tree
from greedw_p2p.plan.rooted import (
    Parents,
    bottleneck_ns_per_mib,
    depth_in_hops,
    distances,
    edges_of,
    neighbours,
    parents_of,
    rerooted,
)
from greedw_p2p.plan.tree import build_tree, spanning_bottleneck
from greedw_p2p.view import View

FAST_NS_PER_MIB: Final = 2 * COST_NS_PER_MIB_FASTEST
"""Where every node is at least this fast (2 Gbit/s), links do not limit the rate: the CPU does."""

CHUNK_BYTES: Final = 16 * KIB, 32 * KIB, 64 * KIB
CHUNK_BYTES_FAST: Final = 32 * KIB, 128 * KIB, 256 * KIB
"""Chunk of a small, a middling and a large gradient, where links limit the rate and where they do
not. One step either way was measured to be worth 1 to 4 %."""

SMALL_BYTES_MAX: Final = 1 * MIB
MIDDLING_BYTES_MAX: Final = 20 * MIB

WINDOW_NS: Final = 300_000_000
"""Chunks under way cover 0.3 s of the gradient's own rate, so that one late node stops nobody."""

WINDOW_BYTES_MIN_FAST: Final = 8 * MIB
"""Where nothing limits the rate, 4 MiB made a chain 1.6 times slower."""

WINDOW_BYTES_MAX: Final = 64 * MIB
WINDOW_CHUNKS_MIN: Final = 16

SEND_BUFFER_NS: Final = 10_000_000
"""All links of a node together hold this much of its rate: 10 to 20 ms were measured to be best."""

SEND_BUFFER_BYTES_MAX: Final = 128 * KIB

assert max(CHUNK_BYTES_FAST) <= CHUNK_BYTES_MAX
assert all(size % 64 == 0 for size in CHUNK_BYTES + CHUNK_BYTES_FAST), "chunks hold whole cells"


def make_plan(
    view: View,
    participants: Iterable[NodeId],
    units: int,
    gradient_bytes: int,
    root: NodeId | None = None,
) -> Plan:
    """Return the plan of an attempt of the view's entry.

    Args:
        view: the agreed view.
        participants: who takes part, in any order; at least one, members of the view.
        units: work units of the round, shared out by speed.
        gradient_bytes: size of what is summed; 0 where only figures ride up and down.
        root: the leader, at which tree 0 must be rooted; the tree's own preference if None.
    """
    nodes = tuple(sorted(participants))
    assert nodes, "a plan needs participants"
    network = Network.of(nodes, view.links)
    parents = _tree_over(view, nodes, network)
    if root is not None:
        parents = rerooted(parents, nodes.index(root))
    top = next(rank for rank, parent in enumerate(parents) if rank == parent)
    load = bottleneck_ns_per_mib(parents, network) if len(nodes) > 1 else 0
    chunk_bytes = _chunk_bytes(network, gradient_bytes)
    return Plan(
        entry=view.entry,
        view_digest=view.digest(),
        trees=(Tree(nodes[top], edges_of(nodes, parents)),),
        quotas=allocate(nodes, units, view.basis),
        chunk_bytes=chunk_bytes,
        window_chunks=_window_chunks(network, load, chunk_bytes),
        send_buffer_bytes=_send_buffer_bytes(load, chunk_bytes),
        predicted_ns=_predicted_ns(parents, network, load, gradient_bytes, chunk_bytes),
        bound_ns=bound_ns_per_mib(network) * gradient_bytes // MIB,
    )


def bound_ns_per_mib(network: Network) -> int:
    """Return the time per MiB that no all-reduce among these nodes can beat.

    The slowest node must send and receive all of it once; all nodes together must send and receive
    it 2 (N - 1) times; and it must cross the slow pairs that separate groups of nodes, whose
    capacity is shared by all pairs that cross.
    """
    count = len(network)
    if count < 2:
        return 0
    carried = 2 * (count - 1)
    return max(
        *network.cost,
        carried * _RATE_UNIT // sum(_RATE_UNIT // cost for cost in network.upload),
        carried * _RATE_UNIT // sum(_RATE_UNIT // cost for cost in network.download),
        spanning_bottleneck(network),
    )


_RATE_UNIT: Final = 1 << 62
"""Rates are this many parts of a MiB per nanosecond: large enough for the slowest cost."""


def _tree_over(view: View, nodes: tuple[NodeId, ...], network: Network) -> Parents:
    """Return the tree in force, or a fresh one where not all members take part."""
    if nodes == view.members:
        parents = parents_of(nodes, view.tree)
        if parents is not None:
            return parents
    return build_tree(network)


def _is_fast(network: Network) -> bool:
    return max(network.cost) <= FAST_NS_PER_MIB and not network.slow_pair.any()


def _chunk_bytes(network: Network, gradient_bytes: int) -> int:
    small, middling, large = CHUNK_BYTES_FAST if _is_fast(network) else CHUNK_BYTES
    if gradient_bytes <= SMALL_BYTES_MAX:
        return small
    return middling if gradient_bytes <= MIDDLING_BYTES_MAX else large


def _window_chunks(network: Network, load: int, chunk_bytes: int) -> int:
    nbytes = WINDOW_NS * MIB // load if load else WINDOW_BYTES_MAX
    if _is_fast(network):
        nbytes = max(nbytes, WINDOW_BYTES_MIN_FAST)
    return max(min(nbytes, WINDOW_BYTES_MAX) // chunk_bytes, WINDOW_CHUNKS_MIN)


def _send_buffer_bytes(load: int, chunk_bytes: int) -> int:
    """Return what one link may hold: the busiest node's share of its rate, for everybody."""
    nbytes = SEND_BUFFER_NS * MIB // load if load else SEND_BUFFER_BYTES_MAX
    return max(min(nbytes, SEND_BUFFER_BYTES_MAX), chunk_bytes)


def _predicted_ns(
    parents: Parents, network: Network, load: int, gradient_bytes: int, chunk_bytes: int
) -> int:
    """Return the time of one all-reduce: all bytes at the bottleneck, and the way up and down."""
    top = next(rank for rank, parent in enumerate(parents) if rank == parent)
    adjacent = neighbours(parents)
    latency_us = max(distances(adjacent, network.hop_us, top))
    last_chunk = min(chunk_bytes, gradient_bytes)
    fill = 2 * depth_in_hops(parents) * last_chunk * load // MIB
    return load * gradient_bytes // MIB + latency_us * 1000 + fill
