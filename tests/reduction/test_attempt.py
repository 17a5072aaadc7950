"""A whole tree of attempts, driven over simulated queues in random order."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from greedw_p2p.errors import ContributionError, PeerError
from greedw_p2p.ids import Incarnation, MemberId, NodeId
from greedw_p2p.reduction.attempt import (
    Action,
    Attempt,
    ChildChunkArrived,
    ChildFinished,
    CloseDown,
    CloseUp,
    Combine,
    Event,
    Figures,
    Finish,
    OwnChunksReady,
    OwnFinished,
    Part,
    Phase,
    ResultChunkArrived,
    ResultFinished,
    ResumeChild,
    SendDown,
    SendUp,
    Shape,
    UnitRange,
)

Vector = NDArray[np.float32]
CHUNK = 3
"""Elements of a simulated chunk."""


def member(number: int) -> MemberId:
    return MemberId(NodeId(f"{number:032x}"), Incarnation(1))


def figures_of(number: int) -> Figures:
    return Figures(samples=number + 1, loss_sum=0.1 * (number + 1), correct=number)


@dataclass
class SimNode:
    """A machine with its memory, and what is on the way to it."""

    number: int
    parent: int | None
    children: list[int]
    shape: Shape
    own: Vector
    machine: Attempt = field(init=False)
    result: Vector = field(init=False)
    slots: list[list[Vector | None]] = field(init=False)
    up: deque[Vector | Part] = field(default_factory=deque[Any])
    """From this node to its parent, not yet read."""
    down: deque[Vector | Figures] = field(default_factory=deque[Any])
    """From the parent to this node, not yet read."""
    own_ready: int = 0
    own_done: bool = False
    sent_up: int = 0
    returned: int = 0
    finish: Finish | None = None

    def __post_init__(self) -> None:
        self.machine = Attempt(self.shape)
        self.result = np.full_like(self.own, np.nan)
        self.slots = [[None] * self.shape.receive_slots for _ in self.children]


class SimTree:
    """Nodes 0..n-1, node 0 the root; every step is one that a real shell could take."""

    def __init__(
        self,
        parents: list[int],
        *,
        chunks: int,
        window: int,
        slots: int,
        units: list[int],
        seed: int,
    ) -> None:
        count = len(parents) + 1
        rng = np.random.default_rng(seed)
        self.chunks, self.window, self.divisor = chunks, window, np.float32(sum(units) or 1)
        self.starts = [sum(units[:number]) for number in range(count)]
        self.units = units
        parent_of = [None, *parents]
        self.nodes: list[SimNode] = []
        for number in range(count):
            children = [n for n in range(count) if n and parent_of[n] == number]
            shape = Shape(
                chunks=chunks,
                children=len(children),
                is_root=number == 0,
                window_chunks=window,
                participants=tuple(member(n) for n in range(count)),
                total_units=sum(units),
                receive_slots=slots,
            )
            own = rng.standard_normal((chunks, CHUNK)).astype(np.float32)
            self.nodes.append(SimNode(number, parent_of[number], children, shape, own))

    def own_part(self, number: int) -> Part:
        own = UnitRange(member(number), self.starts[number], self.units[number])
        return Part((own,), figures_of(number))

    def steps(self, *, reading_results: bool = True) -> list[Callable[[], None]]:
        """Return everything that may happen next."""
        found: list[Callable[[], None]] = []
        for node in self.nodes:
            if not node.own_done:
                found.append(partial(self.compute, node))
            if node.down and reading_results:
                found.append(partial(self.read_down, node))
            for place, child in enumerate(node.children):
                waiting = self.nodes[child].up
                if waiting and (isinstance(waiting[0], Part) or node.machine.can_take(place)):
                    found.append(partial(self.read_child, node, place))
        return found

    def compute(self, node: SimNode) -> None:
        if node.own_ready < self.chunks:
            node.own_ready += 1
            self.handle(node, OwnChunksReady(node.own_ready))
        else:
            node.own_done = True
            self.handle(node, OwnFinished(self.own_part(node.number)))

    def read_child(self, node: SimNode, place: int) -> None:
        frame = self.nodes[node.children[place]].up.popleft()
        if isinstance(frame, Part):
            self.handle(node, ChildFinished(place, frame))
            return
        slot = node.machine.next_of(place) % node.shape.receive_slots
        assert node.slots[place][slot] is None, "a chunk that was not summed yet is overwritten"
        node.slots[place][slot] = frame
        self.handle(node, ChildChunkArrived(place))

    def read_down(self, node: SimNode) -> None:
        frame = node.down.popleft()
        if isinstance(frame, Figures):
            self.handle(node, ResultFinished(frame))
            return
        node.result[node.machine.next_result] = frame
        node.returned += 1
        self.handle(node, ResultChunkArrived())

    def handle(self, node: SimNode, event: Event) -> None:
        for action in node.machine.handle(event):
            self.perform(node, action)
        if not node.children and node.parent is not None:
            assert node.sent_up - node.returned <= self.window, "a leaf ran out of its window"

    def perform(self, node: SimNode, action: Action) -> None:
        match action:
            case Combine(chunk):
                total = node.own[chunk].copy()
                for place in range(len(node.children)):
                    slot = chunk % node.shape.receive_slots
                    part = node.slots[place][slot]
                    assert part is not None, "summed before it arrived"
                    total += part
                    node.slots[place][slot] = None
                node.result[chunk] = total / self.divisor if node.shape.is_root else total
            case SendUp(chunk):
                assert chunk == node.sent_up
                node.sent_up += 1
                node.up.append((node.result if node.children else node.own)[chunk].copy())
            case SendDown(chunk):
                for child in node.children:
                    self.nodes[child].down.append(node.result[chunk].copy())
            case CloseUp(part):
                node.up.append(part)
            case CloseDown(figures):
                for child in node.children:
                    self.nodes[child].down.append(figures)
            case ResumeChild(child):
                assert node.machine.can_take(child) or node.machine.next_of(child) == self.chunks
            case Finish():
                assert node.finish is None
                node.finish = action

    def run(self, choose: Callable[[int], int]) -> None:
        """Take random steps until nothing can happen."""
        while steps := self.steps():
            steps[choose(len(steps))]()
            in_flight = max((len(n.up) + len(n.down) for n in self.nodes), default=0)
            assert in_flight <= self.window + 2, "more than a window, and its summary, on an edge"

    def expected(self) -> Vector:
        """Return the sum in the order of the tree, divided once."""

        def subtree(node: SimNode) -> Vector:
            total = node.own.copy()
            for child in node.children:
                total += subtree(self.nodes[child])
            return total

        return subtree(self.nodes[0]) / self.divisor

    def expected_figures(self) -> Figures:
        def subtree(node: SimNode) -> Figures:
            total = figures_of(node.number)
            for child in node.children:
                total = total.plus(subtree(self.nodes[child]))
            return total

        return subtree(self.nodes[0])


@st.composite
def trees(draw: st.DrawFn) -> SimTree:
    count = draw(st.integers(1, 8))
    parents = [draw(st.integers(0, number - 1)) for number in range(1, count)]
    units = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    return SimTree(
        parents,
        chunks=draw(st.integers(0, 12)),
        window=draw(st.integers(1, 6)),
        slots=draw(st.integers(1, 4)),
        units=units,
        seed=draw(st.integers(0, 1000)),
    )


@settings(deadline=None, max_examples=150)
@given(tree=trees(), rng=st.randoms(use_true_random=False))
def test_every_tree_ends_with_the_sum_in_tree_order_on_every_node_in_any_order_of_events(
    tree: SimTree, rng: Any
) -> None:
    tree.run(rng.randrange)
    expected = tree.expected().tobytes()
    for node in tree.nodes:
        assert node.finish is not None, f"node {node.number} waits: {node.machine.waiting()}"
        assert node.machine.is_finished
        assert node.result.tobytes() == expected
        assert node.finish.figures == tree.expected_figures()
        assert not node.up
        assert not node.down
    part = tree.nodes[0].finish.part if tree.nodes[0].finish else None
    assert part is not None
    assert sorted(r.member for r in part.ranges) == [member(n.number) for n in tree.nodes]


@settings(deadline=None, max_examples=50)
@given(tree=trees(), rng=st.randoms(use_true_random=False), silent=st.integers(0, 7))
def test_nobody_finishes_while_one_participant_is_silent(
    tree: SimTree, rng: Any, silent: int
) -> None:
    node = tree.nodes[silent % len(tree.nodes)]
    node.own_done = True  # it never computes
    tree.run(rng.randrange)
    assert all(other.finish is None for other in tree.nodes)
    for other in tree.nodes:
        assert other.machine.waiting().phase is not Phase.FINISHED
    assert node.machine.waiting().phase is Phase.COMPUTE


@settings(deadline=None, max_examples=50)
@given(tree=trees(), rng=st.randoms(use_true_random=False))
def test_no_leaf_leaves_its_window_when_results_are_never_read(tree: SimTree, rng: Any) -> None:
    while steps := tree.steps(reading_results=False):
        steps[rng.randrange(len(steps))]()
    for node in tree.nodes[1:]:
        assert node.sent_up == min(tree.chunks, tree.window)
        assert len(node.down) <= tree.window + 1


# -- one node ----------------------------------------------------------------------------------


def shape(**changes: Any) -> Shape:
    base = Shape(
        chunks=2,
        children=1,
        is_root=True,
        window_chunks=4,
        participants=(member(0), member(1)),
        total_units=4,
    )
    return replace(base, **changes)


def part(*ranges: tuple[int, int, int]) -> Part:
    return Part(
        tuple(UnitRange(member(who), start, units) for who, start, units in ranges),
        Figures(1, 1.0, 1),
    )


def feed(machine: Attempt, events: Iterable[Event]) -> list[Action]:
    return [action for event in events for action in machine.handle(event)]


def root_with_parts(own: Part, child: Part, **changes: Any) -> list[Action]:
    machine = Attempt(shape(chunks=0, **changes))
    return feed(machine, [OwnChunksReady(0), OwnFinished(own), ChildFinished(0, child)])


def test_root_takes_parts_that_are_exactly_the_round_whatever_their_order() -> None:
    actions = root_with_parts(part((0, 3, 1)), part((1, 0, 3)))
    assert [type(action) for action in actions] == [CloseDown, Finish]


def test_root_takes_a_participant_without_units() -> None:
    assert root_with_parts(part((0, 0, 4)), part((1, 4, 0)))


@pytest.mark.parametrize(
    ("own", "child", "said"),
    [
        (part((0, 0, 4)), part(), "lacks 00000000/1"),
        (part((0, 0, 2)), part((1, 1, 3)), "overlap at 1"),
        (part((0, 0, 1)), part((1, 2, 2)), "leave a hole at 1"),
        (part((0, 0, 1)), part((1, 1, 2)), "3 units were summed, the round has 4"),
        (part((0, 0, 2)), part((1, 2, 3)), "5 units were summed, the round has 4"),
        (part((0, 1, 1)), part((1, 2, 2)), "leave a hole at 0"),
    ],
)
def test_root_refuses_missing_contributors_and_units_that_overlap_or_leave_holes(
    own: Part, child: Part, said: str
) -> None:
    with pytest.raises(ContributionError, match=said) as caught:
        root_with_parts(own, child)
    assert caught.value.child is None


@pytest.mark.parametrize(
    ("child", "said"),
    [
        (part((1, 2, 2), (2, 4, 0)), "takes no part"),
        (part((0, 0, 2), (1, 2, 2)), "in the sum twice"),
        (part((1, 2, 1), (1, 3, 1)), "in the sum twice"),
    ],
)
def test_strangers_and_doubles_are_refused_and_the_child_is_named(child: Part, said: str) -> None:
    with pytest.raises(ContributionError, match=said) as caught:
        root_with_parts(part((0, 0, 2)), child)
    assert caught.value.child == 0


def test_an_older_life_of_a_participant_is_a_stranger() -> None:
    older = MemberId(member(1).node, Incarnation(2))
    stale = Part((UnitRange(older, 2, 2),), Figures(1, 1.0, 1))
    with pytest.raises(ContributionError, match="00000000/2 takes no part"):
        root_with_parts(part((0, 0, 2)), stale)


def test_an_inner_node_refuses_a_double_before_it_reaches_the_root() -> None:
    machine = Attempt(
        shape(chunks=0, children=2, is_root=False, participants=(member(0), member(1)))
    )
    machine.handle(ChildFinished(0, part((1, 0, 2))))
    with pytest.raises(ContributionError) as caught:
        machine.handle(ChildFinished(1, part((1, 0, 2))))
    assert caught.value.child == 1


def test_root_alone_sums_only_its_own_part() -> None:
    machine = Attempt(shape(children=0, participants=(member(0),)))
    events: list[Event] = [OwnChunksReady(1), OwnChunksReady(2), OwnFinished(part((0, 0, 4)))]
    actions = feed(machine, events)
    assert actions == [
        Combine(0),
        Combine(1),
        Finish(Figures(1, 1.0, 1), part((0, 0, 4))),
    ]


def test_a_chunk_is_summed_when_the_last_part_of_it_arrives_and_not_before() -> None:
    machine = Attempt(shape(children=2, is_root=False))
    assert feed(machine, [ChildChunkArrived(0), OwnChunksReady(2)]) == []
    assert machine.handle(ChildChunkArrived(1)) == [Combine(0), SendUp(0)]


def test_a_full_child_may_be_read_again_after_the_sum_and_only_then() -> None:
    machine = Attempt(shape(chunks=4, receive_slots=2))
    assert feed(machine, [ChildChunkArrived(0), ChildChunkArrived(0)]) == []
    assert not machine.can_take(0)
    assert machine.handle(OwnChunksReady(1)) == [Combine(0), SendDown(0), ResumeChild(0)]
    assert machine.can_take(0)


def test_a_leaf_sends_again_for_each_chunk_that_comes_back() -> None:
    machine = Attempt(shape(chunks=3, children=0, is_root=False, window_chunks=1))
    assert machine.handle(OwnChunksReady(3)) == [SendUp(0)]
    assert machine.waiting().phase is Phase.BROADCAST
    assert machine.handle(ResultChunkArrived()) == [SendUp(1)]
    assert machine.handle(ResultChunkArrived()) == [SendUp(2)]


@pytest.mark.parametrize(
    "events",
    [
        [ResultChunkArrived()],
        [OwnChunksReady(1), ChildChunkArrived(0), ResultChunkArrived(), ResultChunkArrived()],
        [ChildFinished(0, part((1, 0, 4)))],
        [ChildChunkArrived(0), ChildChunkArrived(0), ChildChunkArrived(0)],
        [
            ChildChunkArrived(0),
            ChildChunkArrived(0),
            ChildFinished(0, part((1, 0, 2))),
            ChildFinished(0, part((1, 0, 2))),
        ],
        [ResultFinished(Figures(1, 1.0, 1))],
        [OwnChunksReady(2), ChildChunkArrived(0), ResultFinished(Figures(1, 1.0, 1))],
    ],
)
def test_what_a_peer_cannot_send_yet_or_any_more_is_its_fault(events: list[Event]) -> None:
    machine = Attempt(shape(is_root=False))
    feed(machine, events[:-1])
    with pytest.raises(PeerError):
        machine.handle(events[-1])


def test_waiting_names_the_children_that_are_behind() -> None:
    machine = Attempt(shape(children=3))
    feed(machine, [OwnChunksReady(2), ChildChunkArrived(1)])
    waiting = machine.waiting()
    assert (waiting.phase, waiting.chunk, waiting.children) == (Phase.REDUCE, 0, (0, 2))
