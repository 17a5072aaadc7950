"""What a node must do in one attempt, and in which memory: values that the runtime hands over."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from greedw_p2p.ids import Ballot, EntryIndex, LineageId, MemberId, NodeId
from greedw_p2p.limits import RECEIVE_SLOTS
from greedw_p2p.reduction.layout import ELEMENT_BYTES, BucketLayout, ChunkSpan

Vector: TypeAlias = NDArray[np.float32]
"""Shape (n,), float32, contiguous."""

AttemptKey: TypeAlias = tuple[EntryIndex, Ballot]
"""Attempts of one lineage in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOrder:
    """What this node must do in one attempt: its place in the tree, the pieces, the checks.

    ``children`` are sorted: sums are added in that order. ``divisor`` is the round's number of
    samples, by which the root divides.
    """

    lineage: LineageId
    index: EntryIndex
    ballot: Ballot
    tree: int
    view_digest: bytes
    plan_digest: bytes
    me: MemberId
    parent: NodeId | None
    children: tuple[NodeId, ...]
    layout: BucketLayout
    chunk_bytes: int
    window_chunks: int
    send_buffer_bytes: int
    divisor: int
    total_units: int
    participants: tuple[MemberId, ...]

    def __post_init__(self) -> None:
        assert list(self.children) == sorted(set(self.children))
        assert self.me.node not in (self.parent, *self.children)
        assert self.me in self.participants

    @property
    def key(self) -> AttemptKey:
        """Where the attempt stands among those of its lineage."""
        return self.index, self.ballot


@dataclass(frozen=True, slots=True)
class Regions:
    """The memory of an attempt: the own sums, which stay as they are, and the result.

    Both hold at least the layout's elements. While chunks go up, ``result`` holds sums.
    """

    own: Vector
    result: Vector


def slot_memory(order: AttemptOrder, kept: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """Return slots for all children's chunks: those kept from the attempt before, if they fit."""
    longest = max((s.stop - s.start for s in order.layout.chunks(order.chunk_bytes)), default=0)
    shape = (len(order.children), RECEIVE_SLOTS, longest)
    return kept if kept is not None and kept.shape == shape else np.empty(shape, np.float32)


def whole_vector(vector: Vector, elements: int) -> Vector:
    """Return the first ``elements`` of a region, after checking that they can be used in place."""
    assert vector.dtype == np.float32
    assert vector.ndim == 1
    assert vector.flags.c_contiguous
    assert vector.size >= elements, f"a region of {vector.size} elements for {elements}"
    return vector[:elements]


def bytes_of(vector: Vector) -> memoryview:
    """Return a vector's memory as bytes; works for empty ones too, where a cast would not."""
    return vector.view(np.uint8).data


def cut(region: memoryview, span: ChunkSpan) -> memoryview:
    """Return a chunk's bytes within a region."""
    return region[span.start * ELEMENT_BYTES : span.stop * ELEMENT_BYTES]
