"""Several data planes in one event loop, over real sockets on loopback."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from greedw_p2p.ids import (
    Ballot,
    EntryIndex,
    LineageId,
)
from greedw_p2p.log.entry import RoundOutcome
from greedw_p2p.reduction.layout import BucketLayout
from greedw_p2p.wire.messages import Contribution

from .conftest import (
    LAYOUT,
    Cluster,
    chain,
    member,
    node_id,
    random_tree,
    run,
    stalled,
    star,
    until,
)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("tree", [star, chain, random_tree])
def test_result_is_the_numpy_sum_of_the_tree_on_every_node(
    tree: Callable[[int], dict[int, int]], count: int
) -> None:
    async def scenario() -> None:
        async with Cluster(count) as cluster:
            before = [host.own.copy() for host in cluster.hosts]
            for index in (1, 2, 3):
                orders = cluster.orders(tree(count), index=index)
                cluster.begin(orders)
                cluster.compute(orders)
                await cluster.check_result(orders)
            assert sum(host.dials for host in cluster.hosts) == count - 1
            for host, own in zip(cluster.hosts, before, strict=True):
                assert host.own.tobytes() == own.tobytes(), "own sums are needed again"

    run(scenario())


def test_root_learns_who_took_part_with_figures_reports_and_links() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            orders = cluster.orders(chain(4))
            cluster.begin(orders)
            cluster.compute([3, 1, 2, 0])
            event = await cluster.hosts[0].finished()
            loss = 0.0 + (0.1 + (0.2 + 0.1 * 3))
            assert event.outcome == RoundOutcome(10, loss, 6)
            assert event.contributions == tuple(Contribution(member(n), n, 1) for n in range(4))
            assert [report.node for report in event.reports] == [node_id(n) for n in range(4)]
            assert [cell.writer for cell in event.links] == [node_id(n) for n in range(4)]
            for host in cluster.hosts[1:]:
                other = await host.finished()
                assert other.outcome == event.outcome
                assert other.contributions == ()

    run(scenario())


def test_an_empty_layout_carries_only_figures() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            untouched = cluster.hosts[2].result.copy()
            orders = cluster.orders(random_tree(4), layout=BucketLayout(()))
            cluster.begin(orders)
            cluster.compute(orders)
            for host in cluster.hosts:
                event = await host.finished()
                assert event.digest == b""
                assert event.outcome.samples == 10
            assert (cluster.hosts[2].result == untouched).all()

    run(scenario())


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_node_that_begins_late_finds_what_was_sent_before(late: int) -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            cluster.begin(first := cluster.orders(chain(4)))
            cluster.compute(first)
            await cluster.check_result(first)
            orders = cluster.orders(chain(4), index=2)
            early = [number for number in orders if number != late]
            for number in early:
                cluster.hosts[number].begin(orders[number])
            cluster.compute(early)
            # What the late one still runs is nothing: streams of entry 2 wait unread meanwhile.
            assert cluster.hosts[late].plane.phase() == "idle"
            await asyncio.wait([asyncio.create_task(stalled(cluster.hosts[late - 1 or 2]))])
            cluster.hosts[late].begin(orders[late])
            cluster.compute([late])
            await cluster.check_result(orders)

    run(scenario())


def test_a_bucket_travels_before_the_next_one_is_ready() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            orders = cluster.orders(star(2))
            cluster.begin(orders)
            for host in cluster.hosts:
                host.compute(buckets=1)
            size = LAYOUT.buckets[0]
            expected = cluster.expected(orders)[:size].tobytes()
            await until(lambda: cluster.hosts[1].result[:size].tobytes() == expected)
            assert cluster.hosts[1].plane.phase() == "compute: waiting for chunk 4 of this node"
            cluster.compute(orders)
            await cluster.check_result(orders)

    run(scenario())


def test_the_direction_of_an_edge_may_turn_on_the_same_connection() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            for index, parents in enumerate([{1: 0, 2: 1}, {0: 1, 1: 2}, {0: 1, 2: 1}], start=1):
                orders = cluster.orders(parents, index=index)
                cluster.begin(orders)
                cluster.compute(orders)
                await cluster.check_result(orders)
            assert [host.dials for host in cluster.hosts] == [0, 1, 1]

    run(scenario())


def test_a_lower_ballot_is_replaced_in_the_middle_and_its_leftovers_are_skipped() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            for index in range(1, 6):
                old = cluster.orders(chain(4), index=index)
                cluster.begin(old)
                # Node 0 is silent, so the windows of the others fill up and wait.
                cluster.compute([1, 2, 3])
                await stalled(cluster.hosts[3])
                new = cluster.orders(star(4), index=index, ballot=1)
                cluster.begin(new)
                cluster.compute(new)
                await cluster.check_result(new)
            assert all(host.events.empty() for host in cluster.hosts)

    run(scenario())


def test_the_next_attempt_works_on_the_same_connections_after_a_cancel() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            old = cluster.orders(random_tree(4))
            cluster.begin(old)
            cluster.compute([1, 2, 3])
            for host in cluster.hosts:
                await stalled(host)
                host.plane.cancel(EntryIndex(1), Ballot(0, node_id(0)))
                assert host.plane.phase() == "idle"
            new = cluster.orders(random_tree(4), index=2)
            cluster.begin(new)
            cluster.compute(new)
            await cluster.check_result(new)
            assert sum(host.dials for host in cluster.hosts) == 3

    run(scenario())


def test_cancel_of_another_attempt_changes_nothing() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            orders = cluster.orders(star(2))
            cluster.begin(orders)
            cluster.hosts[0].plane.cancel(EntryIndex(1), Ballot(1, node_id(0)))
            cluster.compute(orders)
            await cluster.check_result(orders)

    run(scenario())


@pytest.mark.parametrize(
    ("killed", "phase"),
    [
        (2, "reduce: waiting for chunk 2 of lab-2"),
        (0, "broadcast: waiting for chunk 2 of lab-0"),
    ],
)
def test_a_neighbour_that_dies_in_the_middle_is_named_with_the_phase(
    killed: int, phase: str
) -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            # Small first buckets: everybody has two chunks of the result before the death.
            layout = BucketLayout((16, 16, 4096))
            orders = cluster.orders(chain(3), layout=layout, window_chunks=3)
            cluster.begin(orders)
            for host in cluster.hosts:
                host.compute(buckets=2 if host.number == killed else None)
            await until(lambda: cluster.hosts[1].plane.phase() == phase)
            await cluster.hosts[killed].close()
            event = await cluster.hosts[1].broken()
            assert event.peer == node_id(killed)
            assert event.phase == phase
            assert "closed the connection" in event.reason
            assert cluster.hosts[1].plane.phase() == "idle"

    run(scenario())


def test_a_connection_lost_between_attempts_is_dialled_again() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            for index in (1, 2, 3):
                orders = cluster.orders(chain(3), index=index)
                cluster.begin(orders)
                cluster.compute(orders)
                await cluster.check_result(orders)
                cluster.hosts[1].accepted[-1].abort()
                cluster.hosts[1].dialled[-1].abort()
            assert [host.dials for host in cluster.hosts] == [0, 3, 3]

    run(scenario())


def test_a_connection_lost_before_the_parent_began_is_replaced_and_everything_sent_again() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            orders = cluster.orders(chain(3))
            for number in (2, 1):
                cluster.hosts[number].begin(orders[number])
                cluster.hosts[number].compute()
            await stalled(cluster.hosts[1])
            await until(lambda: len(cluster.hosts[1].dialled) == 1)
            cluster.hosts[1].dialled[0].abort()
            await until(lambda: len(cluster.hosts[0].accepted) == 2)
            cluster.hosts[0].begin(orders[0])
            cluster.hosts[0].compute()
            await cluster.check_result(orders)

    run(scenario())


def test_a_parent_that_cannot_be_reached_breaks_the_attempt_within_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("greedw_daemon.data_plane.plane.DIAL_DEADLINE_S", 0.3)

    async def scenario() -> None:
        async with Cluster(2) as cluster:
            cluster.hosts[0].server.close()
            await cluster.hosts[0].server.wait_closed()
            cluster.hosts[1].begin(cluster.orders(star(2))[1])
            event = await cluster.hosts[1].broken()
            assert event.peer == node_id(0)
            assert event.phase == "connecting to lab-0"
            assert "no bulk connection within 0.3 s" in event.reason
            assert "refused" in event.reason.lower()
            assert cluster.hosts[1].dials > 1

    run(scenario())


@pytest.mark.parametrize("field", ["view_digest", "plan_digest"])
def test_another_view_or_plan_is_found_at_both_ends_and_the_connection_survives(
    field: str,
) -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            orders = cluster.orders(star(2))
            odd: dict[str, Any] = {field: b"x" * 16}
            cluster.hosts[0].begin(orders[0])
            cluster.hosts[1].begin(replace(orders[1], **odd))
            cluster.compute([0, 1])
            for host, peer in ((cluster.hosts[0], 1), (cluster.hosts[1], 0)):
                event = await host.broken()
                assert event.peer == node_id(peer)
                assert f"lab-{peer}" in event.reason
                assert field.removesuffix("_digest") in event.reason
            again = cluster.orders(star(2), index=2)
            cluster.begin(again)
            cluster.compute(again)
            await cluster.check_result(again)
            assert cluster.hosts[1].dials == 1

    run(scenario())


def test_a_child_that_is_none_by_the_plan_is_refused_by_name() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            orders = cluster.orders({1: 0, 2: 0})
            astray = cluster.orders({1: 0, 2: 1})
            cluster.hosts[1].begin(orders[1])
            cluster.hosts[2].begin(astray[2])
            event = await cluster.hosts[1].broken()
            assert event.peer == node_id(2)
            assert "lab-2 opened a stream, but is no child" in event.reason

    run(scenario())


def test_a_new_lineage_waits_for_those_behind_and_skips_what_is_left_of_the_old_one() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            old = cluster.orders(chain(3), index=9)
            cluster.begin(old)
            cluster.compute([2, 1])
            await stalled(cluster.hosts[2])
            new = cluster.orders(chain(3), index=2, lineage=LineageId("cd" * 16))
            for number in (2, 1):
                cluster.hosts[number].begin(new[number])
                cluster.hosts[number].compute()
            await stalled(cluster.hosts[1])
            cluster.hosts[0].begin(new[0])
            cluster.hosts[0].compute()
            await cluster.check_result(new)

    run(scenario())


def test_figures_of_the_last_attempt_are_kept() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            orders = cluster.orders(star(2))
            for index in (1, 2):
                orders = cluster.orders(star(2), index=index)
                cluster.begin(orders)
                cluster.compute(orders)
                await cluster.check_result(orders)
            for host in cluster.hosts:
                plane = host.plane
                assert 0 <= plane.last_wait_us() <= plane.last_transfer_us()
                assert LAYOUT.nbytes < plane.sent_bytes < 1.1 * LAYOUT.nbytes + 2000

    run(scenario())


def test_many_rounds_over_random_trees_and_pieces_all_end_with_the_right_bytes() -> None:
    async def scenario() -> None:
        rng = np.random.default_rng(5)
        async with Cluster(5) as cluster:
            for index in range(1, 25):
                places = [int(number) for number in rng.permutation(5)]
                parents = {places[at]: places[int(rng.integers(at))] for at in range(1, 5)}
                orders = cluster.orders(
                    parents,
                    index=index,
                    chunk_bytes=int(rng.choice([64, 1000, 4096, 65_536])),
                    window_chunks=int(rng.choice([1, 2, 9, 64])),
                    send_buffer_bytes=int(rng.choice([0, 4096, 65_536])),
                )
                for number in map(int, rng.permutation(5)):
                    cluster.hosts[number].begin(orders[number])
                    if rng.random() < 0.5:
                        await asyncio.sleep(0)
                    cluster.hosts[number].compute()
                await cluster.check_result(orders)

    run(scenario())
