"""The simulated network: ordered connections with seeded delays, and a clock that only jumps."""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from greedw_p2p.ids import NodeId

Action = Callable[[], None]


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """Delays in microseconds. Each ordered pair draws a base delay once, each message a jitter."""

    delay_us_min: int = 50
    delay_us_max: int = 2_000
    jitter_us_max: int = 500


class Agenda:
    """Virtual time: actions in order of time, then of entry."""

    def __init__(self) -> None:
        self.now_us = 0
        self._heap: list[tuple[int, int, Action]] = []
        self._sequence = 0

    def at(self, time_us: int, action: Action) -> None:
        """Do something at a time, not before what is due then already."""
        self._sequence += 1
        heapq.heappush(self._heap, (max(time_us, self.now_us), self._sequence, action))

    def after(self, delay_us: int, action: Action) -> None:
        """Do something after a delay."""
        self.at(self.now_us + delay_us, action)

    def step(self) -> bool:
        """Do the next thing; False when nothing is left."""
        if not self._heap:
            return False
        self.now_us, _, action = heapq.heappop(self._heap)
        action()
        return True


@dataclass(slots=True)
class Network:
    """Delivers in order per channel; what is under way on a channel that is cut is lost."""

    agenda: Agenda
    rng: random.Random
    options: NetworkOptions
    _base: dict[tuple[NodeId, NodeId], int] = field(
        default_factory=dict[tuple[NodeId, NodeId], int]
    )
    _free_us: dict[tuple[NodeId, NodeId, str], int] = field(
        default_factory=dict[tuple[NodeId, NodeId, str], int]
    )
    _generation: dict[tuple[NodeId, NodeId, str], int] = field(
        default_factory=dict[tuple[NodeId, NodeId, str], int]
    )

    def send(self, source: NodeId, target: NodeId, channel: str, deliver: Action) -> None:
        """Deliver after the pair's delay, behind all that went before on this channel."""
        pair = (source, target)
        if pair not in self._base:
            options = self.options
            self._base[pair] = self.rng.randint(options.delay_us_min, options.delay_us_max)
        delay = self._base[pair] + self.rng.randint(0, self.options.jitter_us_max)
        key = (source, target, channel)
        arrives_us = max(self.agenda.now_us + delay, self._free_us.get(key, 0))
        self._free_us[key] = arrives_us
        link = _unordered(pair, channel)
        generation = self._generation.get(link, 0)

        def arrive() -> None:
            if self._generation.get(link, 0) == generation:
                deliver()

        self.agenda.at(arrives_us, arrive)

    def cut(self, one: NodeId, other: NodeId, channel: str) -> None:
        """Lose everything that is under way on a channel of two nodes, in both directions."""
        key = _unordered((one, other), channel)
        self._generation[key] = self._generation.get(key, 0) + 1


def _unordered(pair: tuple[NodeId, NodeId], channel: str) -> tuple[NodeId, NodeId, str]:
    one, other = pair
    return (one, other, channel) if one < other else (other, one, channel)
