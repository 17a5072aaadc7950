"""Active probes: who is probed when and how big, and how the receiver times one.

The sender of a link decides, because only it can put bytes on the link; the receiver measures and
publishes. A shaper or a switch lets a burst pass at full speed, so only the second half of a probe
is timed, and a pair's probes double until that half took long enough to be trusted (measured: five
bursts, some 5 ms of the path's rate, are within 15 %).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from greedw_p2p.ids import NodeId
from greedw_p2p.limits import CONTROL_BODY_BYTES_MAX, KIB, MIB
from greedw_p2p.links.cell import CODE_UNKNOWN
from greedw_p2p.links.scale import cost_ns_per_mib
from greedw_p2p.links.table import LinkTable

PIECE_BYTES: Final = 32 * KIB
"""A heartbeat behind a piece waits 5 ms at 50 Mbit/s."""

PROBE_BYTES_FIRST: Final = 128 * KIB
PROBE_BYTES_MAX: Final = 1 * MIB

TRUSTED_US: Final = 5_000
"""A second half at least this long is not a burst any more."""

PROBE_INTERVAL_US: Final = 200_000
"""At most one probe per node in this time: less than a tick, so every tick may have one."""

PAIR_INTERVAL_US: Final = 1_000_000
"""Pause between two probes of a pair, for the receiver's word to come back by gossip."""

STALE_AFTER_US: Final = 600_000_000
"""A pair probed longer ago than this is probed again: 10 minutes."""

PROBES_OF_LAST_SIZE: Final = 3
"""One in four single probes is off by a third or more (a stall); the best of three seldom is."""

assert PIECE_BYTES <= CONTROL_BODY_BYTES_MAX
assert PROBE_BYTES_FIRST >= 2 * PIECE_BYTES


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe to send to ``peer`` now: ``pieces`` pieces of ``size`` bytes, back to back."""

    peer: NodeId
    number: int
    pieces: int
    size: int


class ProbePiece(Protocol):
    """One arriving piece; the wire's ``ProbeChunk`` is one."""

    @property
    def probe(self) -> int:
        """Number of the probe, by its sender."""
        ...

    @property
    def number(self) -> int:
        """Number of the piece, from 0."""
        ...

    @property
    def count(self) -> int:
        """Pieces of the probe."""
        ...

    @property
    def size(self) -> int:
        """Bytes of each piece."""
        ...


@dataclass(frozen=True, slots=True)
class Sample:
    """A timed transfer: this many bytes arrived in this time."""

    nbytes: int
    elapsed_us: int


@dataclass(frozen=True, slots=True)
class _Probed:
    """What was last done to a peer: when, how big, and how often at that size."""

    at_us: int
    nbytes: int
    times: int


class ProbeSchedule:
    """Decides which peer this node probes next. Deterministic: no randomness, ties by rotation."""

    def __init__(self, me: NodeId) -> None:
        self._me = me
        self._probed: dict[NodeId, _Probed] = {}
        self._last: NodeId = me
        self._last_us: int | None = None
        self._sent = 0

    def due(self, peers: Iterable[NodeId], table: LinkTable, now_us: int) -> Probe | None:
        """Return the probe to send now, if one is due, and count it as sent.

        Args:
            peers: nodes with an open control connection.
            table: what is known; a peer's cell about the link from here says what it measured.
            now_us: the time.
        """
        if self._last_us is not None and now_us - self._last_us < PROBE_INTERVAL_US:
            return None
        ready = [
            (self._urgency(peer, table, now_us), peer <= self._last, peer)
            for peer in peers
            if peer != self._me and self._rested(peer, now_us)
        ]
        due = [candidate for candidate in ready if candidate[0] is not None]
        if not due:
            return None
        # The next after the last one in the ring of ids: nodes that start together then begin
        # with different receivers.
        _, _, peer = min(due)
        return self._send(peer, table, now_us)

    def forget(self, peer: NodeId) -> None:
        """Forget a peer that was lost; when it is back it is probed from the start."""
        self._probed.pop(peer, None)

    def _rested(self, peer: NodeId, now_us: int) -> bool:
        probed = self._probed.get(peer)
        return probed is None or now_us - probed.at_us >= PAIR_INTERVAL_US

    def _urgency(self, peer: NodeId, table: LinkTable, now_us: int) -> int | None:
        """Return 0 for an unknown link, 1 for an untrusted value, 2 for a stale one, or None."""
        cell = table.get(writer=peer, peer=self._me)
        probed = self._probed.get(peer)
        if cell is None or cell.cost == CODE_UNKNOWN:
            return 0
        if probed is None or not _is_trusted(probed, cell.cost):
            return 1
        return 2 if now_us - probed.at_us >= STALE_AFTER_US else None

    def _send(self, peer: NodeId, table: LinkTable, now_us: int) -> Probe:
        probed = self._probed.get(peer)
        cell = table.get(writer=peer, peer=self._me)
        nbytes, times = PROBE_BYTES_FIRST, 1
        if probed is not None:
            known = cell is not None and cell.cost != CODE_UNKNOWN
            grows = known and cell is not None and _second_half_us(probed, cell.cost) < TRUSTED_US
            nbytes = min(probed.nbytes * 2, PROBE_BYTES_MAX) if grows else probed.nbytes
            again = nbytes == probed.nbytes and now_us - probed.at_us < STALE_AFTER_US
            times = probed.times + 1 if again else 1
        self._probed[peer] = _Probed(now_us, nbytes, times)
        self._last, self._last_us = peer, now_us
        self._sent += 1
        return Probe(peer, self._sent, nbytes // PIECE_BYTES, PIECE_BYTES)


def _second_half_us(probed: _Probed, cost_code: int) -> int:
    return cost_ns_per_mib(cost_code) * (probed.nbytes // 2) // MIB // 1000


def _is_trusted(probed: _Probed, cost_code: int) -> bool:
    long_enough = _second_half_us(probed, cost_code) >= TRUSTED_US
    return (long_enough or probed.nbytes >= PROBE_BYTES_MAX) and probed.times >= PROBES_OF_LAST_SIZE


@dataclass(slots=True)
class _Arriving:
    probe: int
    count: int
    size: int
    next_number: int
    half_us: int


class ProbeReceiver:
    """Times the second half of arriving probes; at most one in progress per peer."""

    def __init__(self) -> None:
        self._arriving: dict[NodeId, _Arriving] = {}

    def arrived(self, peer: NodeId, piece: ProbePiece, now_us: int) -> Sample | None:
        """Take in a piece; return the sample when it was the last one of its probe.

        Pieces out of order, or that contradict the ones before, end the probe without a sample.
        """
        if piece.number == 0:
            self._arriving[peer] = _Arriving(piece.probe, piece.count, piece.size, 0, now_us)
        current = self._arriving.get(peer)
        if current is None:
            return None
        expected = (current.probe, current.next_number, current.count, current.size)
        if (piece.probe, piece.number, piece.count, piece.size) != expected:
            del self._arriving[peer]
            return None
        current.next_number += 1
        timed = current.count // 2
        if current.next_number == current.count - timed:
            current.half_us = now_us
        if current.next_number < current.count:
            return None
        del self._arriving[peer]
        return Sample(timed * current.size, max(now_us - current.half_us, 1))

    def forget(self, peer: NodeId) -> None:
        """Drop a probe in progress from a peer that was lost."""
        self._arriving.pop(peer, None)
