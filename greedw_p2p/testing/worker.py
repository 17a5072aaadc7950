"""The simulated worker and data plane: real attempt machines over exact integer sums.

A sample's gradient is a few integers that depend on the sample alone, so the sum of any split of a
batch can be checked exactly. A state is the digest of the state before and the result.
"""

import hashlib
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import msgspec

from greedw_p2p.ids import (
    NO_ENTRY,
    NO_STATE,
    Ballot,
    ContentDigest,
    EntryId,
    EntryIndex,
    NodeId,
    StateDigest,
)
from greedw_p2p.jobs.spec import JobSpec
from greedw_p2p.log.entry import EntryKind
from greedw_p2p.node.effects import BeginAttempt
from greedw_p2p.reduction.attempt import Attempt, Figures, Part, Shape, UnitRange

BulkItem = int | Part | Figures
"""What travels on a tree edge: a chunk's value, a summary up, a summary down."""

SIM_CHUNKS: Final = 3
WINDOW_CHUNKS: Final = 2


def gradient(epoch: int, start: int, count: int) -> tuple[int, ...]:
    """Return the sums over the samples [start, start + count) of an epoch, one per chunk."""
    return tuple(
        sum(
            (epoch * 1_000_003 + sample) * (chunk * 7 + 1) for sample in range(start, start + count)
        )
        for chunk in range(SIM_CHUNKS)
    )


def digest_of(values: tuple[int, ...]) -> ContentDigest:
    """Return the digest that names a result."""
    return ContentDigest(hashlib.blake2b(_packed(values), digest_size=16).digest())


def next_state(state: StateDigest, values: tuple[int, ...]) -> StateDigest:
    """Return the state after a result was applied to ``state``."""
    return StateDigest(hashlib.blake2b(state + _packed(values), digest_size=16).digest())


def _packed(values: tuple[int, ...]) -> bytes:
    return msgspec.msgpack.encode([str(value) for value in values])


@dataclass(slots=True)
class SimWorker:
    """Two copies of a job's state, and the job loaded."""

    spec: JobSpec
    current: StateDigest
    second: StateDigest = NO_STATE
    second_of: EntryId = NO_ENTRY
    results: dict[bytes, tuple[int, ...]] = field(default_factory=dict[bytes, "tuple[int, ...]"])

    def apply(self, entry_id: EntryId, values: tuple[int, ...]) -> StateDigest:
        """Compute the second copy."""
        self.second = next_state(self.current, values)
        self.second_of = entry_id
        return self.second

    def flip(self, entry_id: EntryId) -> None:
        """Make the second copy current."""
        assert self.second_of == entry_id, "only a computed state can become current"
        self.current = self.second


@dataclass(slots=True)
class SimAttempt:
    """One attempt at one host: the machine, and the values behind its chunks."""

    order: BeginAttempt
    machine: Attempt
    parent: NodeId | None
    children: tuple[NodeId, ...]
    own: list[int]
    result: list[int]
    slots: list[list[int]]
    inboxes: dict[NodeId, deque[BulkItem]] = field(default_factory=dict[NodeId, "deque[BulkItem]"])

    @property
    def key(self) -> tuple[EntryIndex, Ballot]:
        """Which attempt this is."""
        return self.order.index, self.order.ballot

    @classmethod
    def begun(cls, node: NodeId, order: BeginAttempt) -> "SimAttempt":
        """Set an attempt up as its plan says."""
        tree = order.plan.tree
        children = tree.children_of(node)
        chunks = SIM_CHUNKS if order.kind is EntryKind.ROUND else 0
        shape = Shape(
            chunks=chunks,
            children=len(children),
            is_root=tree.root == node,
            window_chunks=WINDOW_CHUNKS,
            participants=order.participants,
            total_units=order.stop - order.start,
        )
        return cls(
            order=order,
            machine=Attempt(shape),
            parent=tree.parent_of(node),
            children=children,
            own=[0] * chunks,
            result=[0] * chunks,
            slots=[[] for _ in children],
        )

    def compute(self, node: NodeId) -> None:
        """Fill in this host's own sums."""
        first, count = self.order.plan.units_of(node)
        if self.order.kind is EntryKind.ROUND:
            epoch = self.order.spec.epoch_of(self.order.round_number)
            self.own = list(gradient(epoch, self.order.start + first, count))

    def own_part(self, node: NodeId) -> Part:
        """Return this host's part of the round."""
        first, count = self.order.plan.units_of(node)
        member = next(m for m in self.order.participants if m.node == node)
        figures = Figures(samples=count, loss_sum=count * 0.5, correct=count // 2)
        return Part((UnitRange(member, first, count),), figures)

    def combine(self, chunk: int) -> None:
        """Sum one chunk in the order of the tree."""
        self.result[chunk] = self.own[chunk] + sum(values[chunk] for values in self.slots)
