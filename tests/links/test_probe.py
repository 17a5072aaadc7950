from dataclasses import dataclass
from itertools import pairwise

import pytest

from greedw_p2p.ids import Incarnation, NodeId
from greedw_p2p.limits import CONTROL_BODY_BYTES_MAX, KIB, MIB
from greedw_p2p.links.cell import LinkCell
from greedw_p2p.links.estimate import LinkEstimator
from greedw_p2p.links.probe import (
    PAIR_INTERVAL_US,
    PROBE_BYTES_FIRST,
    PROBE_BYTES_MAX,
    PROBE_INTERVAL_US,
    PROBES_OF_LAST_SIZE,
    STALE_AFTER_US,
    Probe,
    ProbeReceiver,
    ProbeSchedule,
    Sample,
)
from greedw_p2p.links.scale import code_of_cost, cost_ns_per_mib
from greedw_p2p.links.table import LinkTable

NODES = tuple(NodeId(f"{number:032x}") for number in range(4))
ME, PEER = NODES[0], NODES[1]
TICK_US = 250_000


@dataclass(frozen=True)
class Piece:
    probe: int
    number: int
    count: int
    size: int


def _pieces(probe: Probe) -> list[Piece]:
    return [Piece(probe.number, n, probe.pieces, probe.size) for n in range(probe.pieces)]


def _cell(writer: NodeId, peer: NodeId, cost: int, version: int = 1) -> LinkCell:
    return LinkCell(writer, peer, Incarnation(1), version, 0, cost)


# -- the schedule ------------------------------------------------------------------------------


def test_at_most_one_probe_is_due_per_interval_and_pair() -> None:
    schedule, table = ProbeSchedule(ME), LinkTable()
    sent: list[tuple[int, NodeId]] = []
    for now_us in range(0, 20_000_000, 50_000):
        probe = schedule.due(NODES, table, now_us)
        if probe is not None:
            sent.append((now_us, probe.peer))
    times = [at_us for at_us, _ in sent]
    assert min(b - a for a, b in pairwise(times)) >= PROBE_INTERVAL_US
    for peer in NODES[1:]:
        own = [at_us for at_us, to in sent if to == peer]
        assert min(b - a for a, b in pairwise(own)) >= PAIR_INTERVAL_US
    assert ME not in {to for _, to in sent}


def test_nodes_that_start_together_probe_different_receivers() -> None:
    schedules = [ProbeSchedule(node) for node in NODES]
    for step in range(3):
        probes = [s.due(NODES, LinkTable(), step * TICK_US) for s in schedules]
        receivers = [probe.peer for probe in probes if probe is not None]
        assert sorted(receivers) == sorted(NODES)


def test_every_peer_gets_its_turn_in_any_order_of_listing() -> None:
    turns: list[list[NodeId]] = []
    for peers in (NODES, tuple(reversed(NODES))):
        schedule = ProbeSchedule(NODES[1])
        probes = [schedule.due(peers, LinkTable(), step * TICK_US) for step in range(3)]
        turns.append([probe.peer for probe in probes if probe is not None])
    assert turns[0] == turns[1] == [NODES[2], NODES[3], NODES[0]]


def test_an_unknown_link_goes_before_one_that_only_needs_a_larger_probe() -> None:
    schedule, table = ProbeSchedule(ME), LinkTable()
    schedule.due([PEER], table, 0)
    table.merge([_cell(PEER, ME, 0)])
    probe = schedule.due(NODES[:3], table, PAIR_INTERVAL_US)
    assert probe is not None
    assert probe.peer == NODES[2]


def _sizes(schedule: ProbeSchedule, table: LinkTable, start_us: int = 0) -> list[int]:
    """Return the sizes of all probes to PEER within five minutes."""
    sizes: list[int] = []
    for now_us in range(start_us, start_us + 300_000_000, TICK_US):
        probe = schedule.due([PEER], table, now_us)
        if probe is not None:
            assert probe.size <= CONTROL_BODY_BYTES_MAX
            sizes.append(probe.pieces * probe.size)
    return sizes


def test_probes_of_a_fast_link_double_up_to_the_largest_and_then_stop() -> None:
    table = LinkTable([_cell(PEER, ME, 0)])
    expected = [128 * KIB, 256 * KIB, 512 * KIB, *[MIB] * PROBES_OF_LAST_SIZE]
    assert _sizes(ProbeSchedule(ME), table) == expected


def test_probes_of_a_slow_link_stay_small() -> None:
    table = LinkTable([_cell(PEER, ME, code_of_cost(10**9 // 6))])
    assert _sizes(ProbeSchedule(ME), table) == [PROBE_BYTES_FIRST] * PROBES_OF_LAST_SIZE


def test_a_stale_link_is_probed_again_at_its_last_size() -> None:
    schedule, table = ProbeSchedule(ME), LinkTable([_cell(PEER, ME, 0)])
    _sizes(schedule, table)
    again = _sizes(schedule, table, STALE_AFTER_US + 10_000_000)
    assert again == [PROBE_BYTES_MAX] * PROBES_OF_LAST_SIZE


def test_a_peer_that_was_lost_is_probed_from_the_start() -> None:
    schedule, table = ProbeSchedule(ME), LinkTable([_cell(PEER, ME, 0)])
    _sizes(schedule, table)
    schedule.forget(PEER)
    assert _sizes(schedule, table, 300_000_000)[0] == PROBE_BYTES_FIRST


# -- the receiver ------------------------------------------------------------------------------


def _receive(receiver: ProbeReceiver, pieces: list[Piece], gap_us: int) -> list[Sample]:
    found = (receiver.arrived(PEER, p, n * gap_us) for n, p in enumerate(pieces))
    return [sample for sample in found if sample is not None]


@pytest.mark.parametrize("count", [2, 3, 4, 7, 32])
def test_only_the_second_half_is_timed(count: int) -> None:
    pieces = _pieces(Probe(PEER, 9, count, 1_000))
    (sample,) = _receive(ProbeReceiver(), pieces, 10)
    assert sample == Sample((count // 2) * 1_000, (count // 2) * 10)


def test_pieces_that_arrive_at_once_take_a_microsecond() -> None:
    (sample,) = _receive(ProbeReceiver(), _pieces(Probe(PEER, 1, 4, 1_000)), 0)
    assert sample.elapsed_us == 1


def test_a_probe_with_a_missing_repeated_or_contradicting_piece_gives_no_sample() -> None:
    whole = _pieces(Probe(PEER, 1, 4, 1_000))
    lying = Piece(1, 2, 4, 60_000)
    for broken in (
        [whole[0], whole[2], whole[3]],
        [whole[0], whole[1], whole[1], whole[2], whole[3]],
        [whole[0], whole[1], lying, whole[3]],
        whole[1:],
    ):
        receiver = ProbeReceiver()
        assert _receive(receiver, broken, 10) == []
        assert len(_receive(receiver, whole, 10)) == 1


def test_a_new_probe_of_a_peer_replaces_the_one_in_progress() -> None:
    receiver = ProbeReceiver()
    first, second = _pieces(Probe(PEER, 1, 4, 1_000)), _pieces(Probe(PEER, 2, 4, 1_000))
    assert len(_receive(receiver, [*first[:3], *second], 10)) == 1
    receiver.arrived(PEER, first[0], 0)
    receiver.forget(PEER)
    assert _receive(receiver, first[1:], 10) == []


# -- both ends over a shaped link --------------------------------------------------------------


@dataclass
class ShapedLink:
    """A token bucket: a burst passes at once, the rest at the set rate."""

    bytes_per_s: float
    burst: int

    def arrivals(self, pieces: list[Piece], start_us: int) -> list[int]:
        """Return when each piece is whole at the receiver."""
        sent, times = 0, list[int]()
        for piece in pieces:
            sent += piece.size
            waiting = max(sent - self.burst, 0)
            times.append(start_us + round(waiting / self.bytes_per_s * 1e6))
        return times


class Measured:
    """Sender, receiver and table of one link, run in steps of a tick."""

    def __init__(self) -> None:
        self.table = LinkTable()
        self.probes = 0
        self._schedule, self._receiver = ProbeSchedule(ME), ProbeReceiver()
        self._estimator = LinkEstimator(PEER, Incarnation(1))

    def run(self, link: ShapedLink, start_us: int, stop_us: int) -> None:
        for now_us in range(start_us, stop_us, TICK_US):
            probe = self._schedule.due([PEER], self.table, now_us)
            if probe is None:
                continue
            self.probes += 1
            pieces = _pieces(probe)
            for piece, at_us in zip(pieces, link.arrivals(pieces, now_us), strict=True):
                sample = self._receiver.arrived(ME, piece, at_us)
                if sample is not None:
                    self._estimator.add_transfer(ME, sample.nbytes, sample.elapsed_us, at_us)
            self.table.merge(self._estimator.cells())

    def cell(self) -> LinkCell:
        cell = self.table.get(writer=PEER, peer=ME)
        assert cell is not None
        return cell

    def rate(self) -> float:
        return MIB / cost_ns_per_mib(self.cell().cost) * 1e9


@pytest.mark.parametrize("mbit", [10, 50, 100, 200, 400, 800])
def test_probes_find_a_shaped_links_rate_within_fifteen_percent(mbit: int) -> None:
    measured = Measured()
    measured.run(ShapedLink(mbit * 125_000.0, burst=50_000), 0, 30_000_000)
    assert measured.rate() == pytest.approx(mbit * 125_000.0, rel=0.15)


def test_a_link_that_was_slow_once_is_found_fast_when_its_value_is_stale() -> None:
    measured = Measured()
    slow, fast = (ShapedLink(mbit * 125_000.0, burst=50_000) for mbit in (10, 200))
    measured.run(slow, 0, 30_000_000)
    before, probes = measured.cell(), measured.probes
    # Nothing asks anew while the value is fresh, and the peer's word stays as it is.
    measured.run(fast, 30_000_000, STALE_AFTER_US)
    assert (measured.cell(), measured.probes) == (before, probes)
    measured.run(fast, STALE_AFTER_US, STALE_AFTER_US + 60_000_000)
    assert measured.rate() == pytest.approx(200 * 125_000.0, rel=0.15)


def test_a_slow_link_that_stays_slow_is_asked_anew_every_ten_minutes() -> None:
    measured = Measured()
    slow = ShapedLink(10 * 125_000.0, burst=50_000)
    measured.run(slow, 0, 30_000_000)
    before, probes = measured.cell(), measured.probes
    measured.run(slow, 30_000_000, 2 * STALE_AFTER_US)
    assert measured.cell() == before
    assert measured.probes == probes + PROBES_OF_LAST_SIZE
