"""Link-cost estimation: samples in, published cells out.

Estimates are floats that only this node sees; what it publishes are integer codes with a dead
band, so that noise changes nothing and the view stays as it is.

A transfer that was long enough is *firm*. A short one may be a burst, so it counts as "at least
this fast" and gives way to samples of more bytes. Of the first samples of one size the best counts,
because a stall makes a single one too slow. A passive sample, where the sender may have waited for
its own children, can only show that the link is faster.
"""

import math
from dataclasses import dataclass
from typing import Final

from greedw_p2p.ids import Incarnation, NodeId
from greedw_p2p.links.cell import CODE_MAX, CODE_UNKNOWN, LinkCell
from greedw_p2p.links.probe import PROBES_OF_LAST_SIZE, TRUSTED_US
from greedw_p2p.links.scale import (
    CODES_PER_DOUBLING,
    COST_NS_PER_MIB_FASTEST,
    LATENCY_US_SHORTEST,
    transfer_cost_ns_per_mib,
)

RTT_WINDOW_US: Final = 30_000_000
"""The minimum is taken over this window and the one before: 120 heartbeats and more."""

RTT_SAMPLES_MIN: Final = 3
"""The first round trip of a connection may include a process that is still starting."""

SMOOTHING: Final = 0.3
DECAY: Final = 0.05
"""Weight of a slower sample where samples are bursts: keep the best, let it fade."""

OUTLIER_CODES: Final = CODES_PER_DOUBLING * math.log2(1.5)
"""Two samples in a row on the same side, off by more than 1.5 times, make the estimate jump."""

DEAD_BAND_CODES: Final = 1.5
"""A published cost moves when the estimate is at least this far from it."""

LATENCY_DEAD_BAND_CODES: Final = 4.0
"""The same for a latency, 1.4 times: even a minimum of round trips rises and falls with the load
of the machines, and a tree is not worth rebuilding for that."""


def _codes_above(base: int, value: float) -> float:
    """Return the position of a value on a scale, as a fraction of codes, within the scale."""
    return min(max(CODES_PER_DOUBLING * math.log2(max(value, 1.0) / base), 0.0), float(CODE_MAX))


@dataclass(slots=True)
class _RoundTrip:
    """Minimum over a window and the one before it."""

    window_start_us: int
    minimum_us: int
    previous_us: int | None = None
    samples: int = 1

    def add(self, rtt_us: int, now_us: int) -> None:
        self.samples += 1
        if now_us - self.window_start_us >= RTT_WINDOW_US:
            self.previous_us, self.minimum_us = self.minimum_us, rtt_us
            self.window_start_us = now_us
        else:
            self.minimum_us = min(self.minimum_us, rtt_us)

    def codes(self) -> float | None:
        if self.samples < RTT_SAMPLES_MIN:
            return None
        best = min(
            self.minimum_us, self.minimum_us if self.previous_us is None else self.previous_us
        )
        return _codes_above(LATENCY_US_SHORTEST, best / 2)


@dataclass(slots=True)
class _Rate:
    """Estimate of a cost in codes, resting on ``samples`` of ``nbytes`` each; lower is faster."""

    codes: float
    nbytes: int
    firm: bool
    samples: int = 1
    outlier_side: int = 0

    def add(self, codes: float, nbytes: int, *, firm: bool) -> None:
        if nbytes > self.nbytes and not self.firm:
            self.codes, self.nbytes, self.firm, self.samples = codes, nbytes, firm, 1
        elif nbytes == self.nbytes and self.samples < PROBES_OF_LAST_SIZE:
            self.samples += 1
            if codes < self.codes:
                self.codes, self.firm = codes, firm
        elif firm:
            self._smooth(codes, SMOOTHING)
        elif nbytes >= self.nbytes and (codes < self.codes or not self.firm):
            self._smooth(codes, SMOOTHING if codes < self.codes else DECAY)

    def raise_to(self, codes: float) -> None:
        """Take in a rate that the link has at least."""
        if codes < self.codes:
            self._smooth(codes, SMOOTHING)

    def _smooth(self, codes: float, weight: float) -> None:
        off = codes - self.codes
        side = 0 if abs(off) <= OUTLIER_CODES else 1 if off > 0 else -1
        if side and side == self.outlier_side:
            self.codes, self.outlier_side = codes, 0
            return
        if not side:
            self.codes += weight * off
        self.outlier_side = side


@dataclass(slots=True)
class _Link:
    round_trip: _RoundTrip | None = None
    rate: _Rate | None = None
    published: LinkCell | None = None


class LinkEstimator:
    """Estimates the links from all peers to this node, and publishes its cells."""

    def __init__(self, me: NodeId, incarnation: Incarnation) -> None:
        self._me = me
        self._incarnation = incarnation
        self._links: dict[NodeId, _Link] = {}
        self._version = 0

    def add_rtt(self, peer: NodeId, rtt_us: int, now_us: int) -> None:
        """Take in a round trip to ``peer``; half the windowed minimum is the latency."""
        link = self._links.setdefault(peer, _Link())
        if link.round_trip is None:
            link.round_trip = _RoundTrip(now_us, rtt_us)
        else:
            link.round_trip.add(rtt_us, now_us)

    def add_transfer(
        self,
        peer: NodeId,
        nbytes: int,
        elapsed_us: int,
        now_us: int,
        *,
        at_least: bool = False,
    ) -> None:
        """Take in a transfer from ``peer`` to this node.

        Args:
            peer: the sender.
            nbytes: how much arrived.
            elapsed_us: in which time.
            now_us: the time.
            at_least: the sender may have been idle in between, so the link may be faster.
        """
        link = self._links.setdefault(peer, _Link())
        cost = transfer_cost_ns_per_mib(nbytes, elapsed_us)
        codes = _codes_above(COST_NS_PER_MIB_FASTEST, float(cost))
        if link.rate is None:
            # Of a passive sample's size nothing follows: any probe replaces it.
            firm = elapsed_us >= TRUSTED_US and not at_least
            link.rate = _Rate(codes, 0 if at_least else nbytes, firm)
        elif at_least:
            link.rate.raise_to(codes)
        else:
            link.rate.add(codes, nbytes, firm=elapsed_us >= TRUSTED_US)

    def cells(self) -> tuple[LinkCell, ...]:
        """Return this node's cells, sorted by peer; versions rise only where a code moved."""
        cells = (self._publish(peer, self._links[peer]) for peer in sorted(self._links))
        return tuple(cell for cell in cells if cell is not None)

    def forget(self, peer: NodeId) -> None:
        """Drop a node that is a member no more."""
        self._links.pop(peer, None)

    def _publish(self, peer: NodeId, link: _Link) -> LinkCell | None:
        before = link.published
        latency = _settled(
            CODE_UNKNOWN if before is None else before.latency,
            None if link.round_trip is None else link.round_trip.codes(),
            LATENCY_DEAD_BAND_CODES,
        )
        cost = _settled(
            CODE_UNKNOWN if before is None else before.cost,
            None if link.rate is None else link.rate.codes,
            DEAD_BAND_CODES,
        )
        if before is None and latency == cost == CODE_UNKNOWN:
            return None
        if before is None or (latency, cost) != (before.latency, before.cost):
            # One counter for all cells: a link that was forgotten and came back must not fall
            # behind the cells that others still hold of it.
            self._version += 1
            link.published = LinkCell(
                self._me, peer, self._incarnation, self._version, latency, cost
            )
        return link.published


def _settled(published: int, estimate: float | None, dead_band: float) -> int:
    """Return the code to publish: the old one, unless the estimate has left the dead band."""
    if estimate is None:
        return published
    if published != CODE_UNKNOWN and abs(estimate - published) < dead_band:
        return published
    return round(estimate)
