"""The all-reduce of one attempt at one node, as a state machine that moves no bytes.

Rules
-----

1. Whatever decides that a chunk may be summed, sent, or called final is in this file. The shell
   receives bytes, tells what has arrived, and carries the actions out in order, each before the
   next event.
2. The machine knows places, not names: child 0, child 1, ..., the parent. The caller sorts the
   children, and sums are added in that order, own part first, so the bits of a result depend on
   the tree and on nothing else: not on arrival order, not on timing.
3. All or nothing: chunk c is summed when the own chunk c and that of every child are there, and is
   never touched again on its way up. A partial sum is never sent.
4. Each direction of an edge carries one known sequence: chunk 0, 1, ..., n - 1, then one closing
   summary. So an event needs no chunk number, and a peer that deviates is found by the shell,
   which compares what a frame says with what is due here.
5. A peer's fault raises ``PeerError`` and the machine must not be used again. A wrong call of the
   shell is an ``assert``.

Theory of operation
-------------------

Five counters say everything about the bytes; each only grows, and none passes the one before it::

    own_ready                     chunks that this node's worker has finished
    arrived[i]                    chunks that child i has delivered
    combined                      chunks summed: <= own_ready and <= arrived[i] for every i
    sent_up                       = combined at an inner node
    returned                      chunks of the result that are here; = combined at the root

A leaf that is not the root sums nothing: it sends its own chunks as they are, and only while
``sent_up < returned + window``. That one rule bounds the memory of the whole tree: no node can have
more than ``window`` chunks of any leaf summed, queued or on the way, so no edge needs credits. An
inner node sums chunk c where its result will be. That is safe by causality: result c cannot come
down before this node's sum of c has gone up.

A child's chunks wait in ``receive_slots`` slots, chunk c in slot c modulo their number, from
arrival until they are summed. ``can_take`` tells whether the next one has a slot; ``ResumeChild``
says that it has one again.

When all own figures and all children's summaries are there and the last sum has been sent, the
node closes the way up with the merged figures. The root closes the way down instead: first it
checks that the participants it was given are exactly those whose parts were summed, each once, and
that their work units are exactly those of the round, without overlap or hole. A result that passed
holds every sample once, or there is no result.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from greedw_p2p.errors import ContributionError, PeerError
from greedw_p2p.ids import MemberId
from greedw_p2p.limits import RECEIVE_SLOTS


@dataclass(frozen=True, slots=True)
class UnitRange:
    """The work units [start, start + units) of a round, computed by ``member``."""

    member: MemberId
    start: int
    units: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What rides along with a sum. Floats are added in the order of the tree."""

    samples: int
    loss_sum: float
    correct: int

    def plus(self, other: "Figures") -> "Figures":
        """Return the sum, ``self`` first."""
        return Figures(
            self.samples + other.samples,
            self.loss_sum + other.loss_sum,
            self.correct + other.correct,
        )


@dataclass(frozen=True, slots=True)
class Part:
    """Whose work a sum holds, and its figures."""

    ranges: tuple[UnitRange, ...]
    figures: Figures


@dataclass(frozen=True, slots=True)
class Shape:
    """What a node must know of an attempt: its place, the pieces, and what must come together."""

    chunks: int
    children: int
    is_root: bool
    window_chunks: int
    participants: tuple[MemberId, ...]
    total_units: int
    receive_slots: int = RECEIVE_SLOTS

    def __post_init__(self) -> None:
        assert self.chunks >= 0
        assert self.children >= 0
        assert self.window_chunks >= 1
        assert self.receive_slots >= 1
        assert len(set(self.participants)) == len(self.participants) >= 1


# -- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnChunksReady:
    """The first ``count`` chunks of the own sum are final."""

    count: int


@dataclass(frozen=True, slots=True)
class OwnFinished:
    """The own computation has ended; all its chunks were ready before."""

    part: Part


@dataclass(frozen=True, slots=True)
class ChildChunkArrived:
    """The child's next chunk is whole in its slot."""

    child: int


@dataclass(frozen=True, slots=True)
class ChildFinished:
    """The child closed the way up."""

    child: int
    part: Part


@dataclass(frozen=True, slots=True)
class ResultChunkArrived:
    """The next chunk of the result is whole in its place."""


@dataclass(frozen=True, slots=True)
class ResultFinished:
    """The parent closed the way down, and the digest of the result is the one it named."""

    figures: Figures


Event = (
    OwnChunksReady
    | OwnFinished
    | ChildChunkArrived
    | ChildFinished
    | ResultChunkArrived
    | ResultFinished
)


# -- actions ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Combine:
    """Result chunk = own chunk + child 0's + child 1's + ...; the root divides it as well."""

    chunk: int


@dataclass(frozen=True, slots=True)
class SendUp:
    """Send the chunk to the parent: a leaf its own, an inner node the sum."""

    chunk: int


@dataclass(frozen=True, slots=True)
class SendDown:
    """Send the chunk of the result to every child."""

    chunk: int


@dataclass(frozen=True, slots=True)
class ResumeChild:
    """A slot is free for a child whose slots were all taken."""

    child: int


@dataclass(frozen=True, slots=True)
class CloseUp:
    """Close the way up with the subtree's part."""

    part: Part


@dataclass(frozen=True, slots=True)
class CloseDown:
    """Close the way down: the result is whole and came to ``figures``."""

    figures: Figures


@dataclass(frozen=True, slots=True)
class Finish:
    """The result is whole here. ``part`` is the whole round at the root, None elsewhere."""

    figures: Figures
    part: Part | None


Action = Combine | SendUp | SendDown | ResumeChild | CloseUp | CloseDown | Finish


# -- what it waits for, for people ---------------------------------------------------------------


class Phase(StrEnum):
    """What an attempt is doing."""

    COMPUTE = "compute"
    REDUCE = "reduce"
    BROADCAST = "broadcast"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Waiting:
    """What comes next: ``chunk`` (None: the closing summary) from ``children`` or the parent.

    In COMPUTE this node's own worker is waited for; ``children`` are those who are behind too.
    """

    phase: Phase
    chunk: int | None
    children: tuple[int, ...]


class Attempt:
    """One attempt's all-reduce at one node."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._own_ready: int = 0
        self._arrived: list[int] = [0] * shape.children
        self._combined: int = 0
        self._sent_up: int = 0
        self._returned: int = 0
        self._own_part: Part | None = None
        self._child_parts: list[Part | None] = [None] * shape.children
        self._up_closed = False
        self._finished = False

    @property
    def is_finished(self) -> bool:
        """Tell whether the result is whole and checked."""
        return self._finished

    @property
    def next_result(self) -> int:
        """The chunk of the result that comes next."""
        return self._returned

    @property
    def sent_up(self) -> int:
        """Chunks that may be on their way up: all below this one."""
        return self._sent_up

    def next_of(self, child: int) -> int:
        """Return the chunk that is due from ``child``; the number of chunks after the last."""
        return self._arrived[child]

    def can_take(self, child: int) -> bool:
        """Tell whether the next chunk of ``child`` has a free slot."""
        return self._arrived[child] - self._combined < self._shape.receive_slots

    def waiting(self) -> Waiting:
        """Tell what comes next, as a value that the shell can put into words."""
        if self._finished:
            return Waiting(Phase.FINISHED, None, ())
        up_next = self._sent_up if self._is_leaf else self._combined
        if up_next < self._shape.chunks:
            return self._waiting_for_chunk(up_next)
        missing = tuple(i for i, part in enumerate(self._child_parts) if part is None)
        if self._own_part is None:
            return Waiting(Phase.COMPUTE, None, missing)
        if missing:
            return Waiting(Phase.REDUCE, None, missing)
        due = self._returned if self._returned < self._shape.chunks else None
        return Waiting(Phase.BROADCAST, due, ())

    def handle(self, event: Event) -> list[Action]:
        """Apply one event and return what the shell must do, in order.

        Raises:
            ContributionError: the parts that came together are not those of the round.
            PeerError: a peer sent what cannot come at this point.
        """
        assert not self._finished, f"{event} after the end of the attempt"
        match event:
            case ChildChunkArrived(child):
                assert self.can_take(child), "a child was read although its slots were full"
                self._check_more_chunks(self._arrived[child])
                self._arrived[child] += 1
            case ResultChunkArrived():
                return self._take_result()
            case OwnChunksReady(count):
                assert self._own_ready <= count <= self._shape.chunks
                self._own_ready = count
            case OwnFinished(part):
                assert self._own_part is None, "the own computation ended twice"
                assert self._own_ready == self._shape.chunks, "ended before its last chunk"
                self._own_part = part
                self._check_parts()
            case ChildFinished(child, part):
                self._take_summary(child, part)
            case ResultFinished(figures):
                return self._end(figures)
        return self._advance()

    @property
    def _is_leaf(self) -> bool:
        """Tell whether own chunks go up as they are. A root without children sums its own."""
        return self._shape.children == 0 and not self._shape.is_root

    def _waiting_for_chunk(self, chunk: int) -> Waiting:
        """Tell why ``chunk`` cannot go up yet."""
        if chunk >= self._returned + self._shape.window_chunks:
            # The window is full, here or at the leaves below: only the result moves them on.
            return Waiting(Phase.BROADCAST, self._returned, ())
        behind = tuple(i for i, count in enumerate(self._arrived) if count <= chunk)
        if self._own_ready <= chunk:
            return Waiting(Phase.COMPUTE, chunk, behind)
        assert behind, "nothing is missing, so the chunk should be on its way"
        return Waiting(Phase.REDUCE, chunk, behind)

    def _advance(self) -> list[Action]:
        """Do all that the counters allow now."""
        actions: list[Action] = []
        if self._is_leaf:
            limit = min(self._own_ready, self._returned + self._shape.window_chunks)
            actions += [SendUp(chunk) for chunk in range(self._sent_up, limit)]
            self._sent_up = max(self._sent_up, limit)
        else:
            self._combine(actions)
        self._close_up(actions)
        return actions

    def _combine(self, actions: list[Action]) -> None:
        """Sum every chunk that is complete, and send each on at once."""
        shape = self._shape
        limit = min(self._own_ready, *self._arrived) if self._arrived else self._own_ready
        if limit == self._combined:
            return
        stalled = [child for child in range(shape.children) if not self.can_take(child)]
        for chunk in range(self._combined, limit):
            actions.append(Combine(chunk))
            if not shape.is_root:
                actions.append(SendUp(chunk))
            elif shape.children:
                actions.append(SendDown(chunk))
        self._combined = limit
        if shape.is_root:
            self._returned = limit
        else:
            self._sent_up = limit
        actions += [ResumeChild(child) for child in stalled]

    def _close_up(self, actions: list[Action]) -> None:
        """Send the merged figures after the last sum; at the root, end the attempt."""
        shape = self._shape
        summed = self._combined if shape.is_root else self._sent_up
        if self._up_closed or summed < shape.chunks:
            return
        parts = (self._own_part, *self._child_parts)
        whole = [part for part in parts if part is not None]
        if len(whole) < len(parts):
            return
        self._up_closed = True
        merged = _merge(whole)
        if not shape.is_root:
            actions.append(CloseUp(merged))
            return
        _check_round(merged.ranges, shape.participants, shape.total_units)
        if shape.children:
            actions.append(CloseDown(merged.figures))
        actions.append(Finish(merged.figures, merged))
        self._finished = True

    def _take_result(self) -> list[Action]:
        """Pass a chunk of the result on, and let a leaf send further."""
        assert not self._shape.is_root
        if self._returned >= self._sent_up:
            raise PeerError(f"chunk {self._returned} of the result came before it was summed here")
        chunk = self._returned
        self._returned += 1
        passed: list[Action] = [SendDown(chunk)] if self._shape.children else []
        return passed + self._advance()

    def _take_summary(self, child: int, part: Part) -> None:
        """Take a child's figures; they close its way up."""
        if self._child_parts[child] is not None:
            raise PeerError("closed its way up twice")
        missing = self._shape.chunks - self._arrived[child]
        if missing:
            raise PeerError(f"closed its way up with {missing} chunks missing")
        self._child_parts[child] = part
        self._check_parts(blamed=child)

    def _end(self, figures: Figures) -> list[Action]:
        """Take the parent's closing summary and pass it on."""
        assert not self._shape.is_root
        if not self._up_closed or self._returned < self._shape.chunks:
            raise PeerError("the result was closed before it was whole")
        self._finished = True
        passed: list[Action] = [CloseDown(figures)] if self._shape.children else []
        return [*passed, Finish(figures, None)]

    def _check_more_chunks(self, arrived: int) -> None:
        """Refuse a chunk after the last."""
        if arrived >= self._shape.chunks:
            raise PeerError(f"sent a chunk after all {self._shape.chunks}")

    def _check_parts(self, blamed: int | None = None) -> None:
        """Refuse strangers and doubles as soon as they show, where it is known who sent them."""
        parts = (self._own_part, *self._child_parts)
        members = [r.member for part in parts if part is not None for r in part.ranges]
        allowed = frozenset(self._shape.participants)
        for member in members:
            if member not in allowed:
                raise ContributionError(f"{_name(member)} takes no part in this round", blamed)
        if len(set(members)) < len(members):
            double = next(m for m in members if members.count(m) > 1)
            raise ContributionError(f"{_name(double)} is in the sum twice", blamed)


def _merge(parts: Iterable[Part]) -> Part:
    """Add the figures in order, and join the ranges."""
    first, *others = parts
    ranges, figures = first.ranges, first.figures
    for part in others:
        ranges += part.ranges
        figures = figures.plus(part.figures)
    return Part(ranges, figures)


def _check_round(
    ranges: tuple[UnitRange, ...], participants: tuple[MemberId, ...], total_units: int
) -> None:
    """Check that every participant is in the sum, and every unit exactly once.

    Raises:
        ContributionError: somebody is missing, or units overlap or leave a hole.
    """
    present = {r.member for r in ranges}
    absent = [member for member in participants if member not in present]
    if absent:
        raise ContributionError(f"the sum lacks {', '.join(map(_name, absent))}", None)
    covered = 0
    for r in sorted(ranges, key=lambda r: (r.start, r.units)):
        if r.units == 0:
            continue
        if r.start != covered:
            fault = "overlap" if r.start < covered else "leave a hole"
            raise ContributionError(
                f"the units {fault} at {min(r.start, covered)}: {_name(r.member)} computed"
                f" [{r.start}, {r.start + r.units}), all before it reach {covered}",
                None,
            )
        covered += r.units
    if covered != total_units:
        raise ContributionError(f"{covered} units were summed, the round has {total_units}", None)


def _name(member: MemberId) -> str:
    """Return a life of a node in a form for messages."""
    return f"{member.node[:8]}/{member.incarnation}"
