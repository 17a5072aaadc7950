"""What the view's link cells mean for planning: node capacities, latencies, slow pairs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from greedw_p2p.ids import NodeId
from greedw_p2p.links.cell import CODE_UNKNOWN, LinkCell
from greedw_p2p.links.scale import (
    COST_CODE_DEFAULT,
    LATENCY_CODE_DEFAULT,
    cost_ns_per_mib,
    latency_us,
)

Matrix: TypeAlias = NDArray[np.int64]

SLOW_PAIR_CODES: Final = 6
"""A pair is slow by itself if its cost is this far (1.7 times) above what both ends can do: less is
noise of the estimates."""

HOP_US: Final = 50
"""What a hop costs beside its latency: a wake-up, a sum, a send. Keeps depth in hops from being
free where latencies are short."""


@dataclass(frozen=True, slots=True)
class Network:
    """Costs among some nodes, as integers indexed by the nodes' rank in id order.

    ``upload`` and ``download`` are each node's best, in nanoseconds per MiB; ``cost`` the worse of
    the two, because a tree edge carries the gradient both ways. ``hop_us`` is the time of both
    directions of a hop, symmetric. ``slow_pair`` is a pair's own cost in nanoseconds per MiB where
    it is clearly above both ends', else 0; symmetric, the worse direction.
    """

    nodes: tuple[NodeId, ...]
    upload: tuple[int, ...]
    download: tuple[int, ...]
    cost: tuple[int, ...]
    hop_us: Matrix
    slow_pair: Matrix

    @classmethod
    def of(cls, nodes: Iterable[NodeId], links: Iterable[LinkCell]) -> "Network":
        """Derive the costs among ``nodes`` from measurements, in any order."""
        ranked = tuple(sorted(nodes))
        rank = {node: index for index, node in enumerate(ranked)}
        cells = [
            (rank[cell.peer], rank[cell.writer], cell.latency, cell.cost)
            for cell in links
            if cell.peer in rank and cell.writer in rank and cell.peer != cell.writer
        ]
        count = len(ranked)
        upload = _best_codes(count, [(source, cost) for source, _, _, cost in cells])
        download = _best_codes(count, [(target, cost) for _, target, _, cost in cells])
        return cls(
            ranked,
            tuple(cost_ns_per_mib(code) for code in upload),
            tuple(cost_ns_per_mib(code) for code in download),
            tuple(cost_ns_per_mib(max(pair)) for pair in zip(upload, download, strict=True)),
            _hop_matrix(count, cells),
            _slow_pair_matrix(count, cells, upload, download),
        )

    def __len__(self) -> int:
        return len(self.nodes)


_IndexedCell: TypeAlias = tuple[int, int, int, int]
"""Source, target, latency code, cost code."""


def _best_codes(count: int, measured: Sequence[tuple[int, int]]) -> list[int]:
    """Return the best cost code of each node; the best of all where a node has none.

    An unmeasured node counts as good as the best one known, so that it is tried, but not better:
    the absolute default would make it the hub of a slow network before anything is known of it.
    """
    best = [CODE_UNKNOWN] * count
    for node, code in measured:
        if code != CODE_UNKNOWN and (best[node] == CODE_UNKNOWN or code < best[node]):
            best[node] = code
    default = min((code for code in best if code != CODE_UNKNOWN), default=COST_CODE_DEFAULT)
    return [default if code == CODE_UNKNOWN else code for code in best]


def _hop_matrix(count: int, cells: Sequence[_IndexedCell]) -> Matrix:
    known = [code for _, _, code, _ in cells if code != CODE_UNKNOWN]
    one_way = np.full(
        (count, count), latency_us(min(known, default=LATENCY_CODE_DEFAULT)), dtype=np.int64
    )
    for source, target, code, _ in cells:
        if code != CODE_UNKNOWN:
            one_way[source, target] = latency_us(code)
    hop: Matrix = one_way + one_way.T + HOP_US
    np.fill_diagonal(hop, 0)
    return hop


def _slow_pair_matrix(
    count: int, cells: Sequence[_IndexedCell], upload: Sequence[int], download: Sequence[int]
) -> Matrix:
    slow: Matrix = np.zeros((count, count), dtype=np.int64)
    for source, target, _, code in cells:
        if code >= max(upload[source], download[target]) + SLOW_PAIR_CODES:
            slow[source, target] = cost_ns_per_mib(code)
    both: Matrix = np.maximum(slow, slow.T)
    return both
