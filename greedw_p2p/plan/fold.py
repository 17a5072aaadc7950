"""Folding the log into the view: what one entry changes in what the next is planned from."""

from collections.abc import Iterable
from typing import Final

from greedw_p2p.config import Config
from greedw_p2p.ids import EntryIndex, NodeId
from greedw_p2p.links.cell import LinkCell
from greedw_p2p.links.table import LinkTable
from greedw_p2p.plan.allocation import makespan_ns, paces_of, split
from greedw_p2p.plan.network import Network
from greedw_p2p.plan.rooted import (
    Parents,
    bottleneck_ns_per_mib,
    eccentricities,
    edges_of,
    parents_of,
    rerooted,
)
from greedw_p2p.plan.tree import build_tree
from greedw_p2p.view import Edge, RoundReport, Speed, View, ViewDelta

SMOOTHING_TENTHS: Final = 3
"""Weight of a new report in the estimate: 0.3."""

STEP_PARTS: Final = 8
"""A report that is not far off counts as off by an eighth at most: what delays a computation is
short and frequent, and a mean that follows it makes shares wander on equal machines."""

OUTLIERS_SLOWER: Final = 3
"""So many reports in a row, each over 1.5 times slower, make the estimate jump to the nearest of
them. With four workers on two busy cores one round in eight is that slow, one pair in forty. A
report over 1.5 times faster makes it jump at once: delays make no computation faster."""

GAIN_TREE_PERCENT: Final = 8
"""A new tree must be at least this much better: connections cost, and costs are codes 9 % apart."""

GAIN_SHARES_PERCENT: Final = 3
"""Moving shares must shorten the round's computation by at least this much."""


def genesis_view(config: Config) -> View:
    """Return the view from which entry 1 is planned, when nothing has been measured."""
    members = tuple(sorted(config.nodes))
    return View(EntryIndex(1), members, (), (), (), _decide_tree(members, (), ()))


def next_view(view: View, config: Config, delta: ViewDelta) -> View:
    """Return the view after an entry with this config and delta. Pure, integers only."""
    members = tuple(sorted(config.nodes))
    same_members = members == view.members
    links = view.links
    if delta.links or not same_members:
        links = _fold_links(links, delta.links, members)
    speeds = _fold_speeds(view.speeds, delta.reports, members)
    tree = view.tree
    if links != view.links or not same_members or not tree:
        tree = _decide_tree(members, links, tree)
    basis = _decide_basis(view.basis, speeds, delta.reports, members)
    return View(EntryIndex(view.entry + 1), members, links, speeds, basis, tree)


def preferred_root(view: View) -> NodeId:
    """Return the node that should lead: the root of the tree in force, near its latency centre."""
    root = next((edge.node for edge in view.tree if edge.node == edge.parent), None)
    return view.members[0] if root is None else root


def _fold_links(
    links: tuple[LinkCell, ...], news: tuple[LinkCell, ...], members: tuple[NodeId, ...]
) -> tuple[LinkCell, ...]:
    table = LinkTable(links)
    table.merge(news)
    return table.newer_than((), members)


# -- speeds and shares --------------------------------------------------------------------------


def _fold_speeds(
    before: Iterable[Speed], reports: Iterable[RoundReport], members: tuple[NodeId, ...]
) -> tuple[Speed, ...]:
    speeds = {speed.node: speed for speed in before}
    for report in sorted(reports):
        if report.units and report.compute_us:
            speeds[report.node] = _folded(speeds.get(report.node), report)
    return tuple(speeds[node] for node in members if node in speeds)


def _folded(before: Speed | None, report: RoundReport) -> Speed:
    """Fold a report into a node's speed: smooth, hold where it is far slower, jump in the end.

    Of the report's fixed cost only its ratio to the pace is taken: that is calibrated, and what
    slows a node down slows both alike.
    """
    fixed = min(report.fixed_us, report.compute_us) * 1000
    sample = max((report.compute_us * 1000 - fixed) // report.units, 1)

    def at(unit_ns: int, outlier_ns: int = 0, outliers: int = 0) -> Speed:
        return Speed(report.node, unit_ns, fixed * unit_ns // sample, outlier_ns, outliers)

    if before is None:
        return at(sample)
    pace = before.unit_ns
    if not _is_far(sample, pace):
        limit = max(pace // STEP_PARTS, 1)
        off = min(max(sample - pace, -limit), limit)
        return at(max(pace + (SMOOTHING_TENTHS * off + 5) // 10, 1))
    outliers = before.outliers + 1
    if sample < pace or outliers >= OUTLIERS_SLOWER:
        return at(min(sample, before.outlier_ns) if sample > pace else sample)
    return at(pace, min(sample, before.outlier_ns or sample), outliers)


def _is_far(sample: int, estimate: int) -> bool:
    """Tell whether two figures differ by more than 1.5 times."""
    return 2 * max(sample, estimate) > 3 * min(sample, estimate)


def _decide_basis(
    basis: tuple[Speed, ...],
    speeds: tuple[Speed, ...],
    reports: Iterable[RoundReport],
    members: tuple[NodeId, ...],
) -> tuple[Speed, ...]:
    """Return the speeds that shares follow from now on."""
    present = frozenset(members)
    kept = tuple(speed for speed in basis if speed.node in present)
    units = sum(report.units for report in reports if report.node in present)
    if not units:
        return kept
    paces = paces_of(members, speeds)
    now = makespan_ns(paces, split(paces_of(members, kept), units))
    then = makespan_ns(paces, split(paces, units))
    return speeds if (now - then) * 100 >= GAIN_SHARES_PERCENT * now else kept


# -- the tree -------------------------------------------------------------------------------------


def _decide_tree(
    members: tuple[NodeId, ...], links: Iterable[LinkCell], before: tuple[Edge, ...]
) -> tuple[Edge, ...]:
    """Return the tree in force: the one before, unless members changed or a better one is clear."""
    network = Network.of(members, links)
    root = next((edge.node for edge in before if edge.node == edge.parent), None)
    kept = parents_of(members, before)
    tree = build_tree(network)
    if kept is not None and not _is_clearly_better(tree, kept, network):
        tree = kept
    old_root = members.index(root) if root in members else None
    return edges_of(members, _rooted_steadily(tree, old_root, network))


def _is_clearly_better(new: Parents, old: Parents, network: Network) -> bool:
    """Compare bottlenecks, and depths only if the bottleneck does not get worse."""
    new_load = bottleneck_ns_per_mib(new, network)
    old_load = bottleneck_ns_per_mib(old, network)
    if _gains(new_load, old_load):
        return True
    new_depth = min(eccentricities(new, network.hop_us))
    old_depth = min(eccentricities(old, network.hop_us))
    return new_load <= old_load and _gains(new_depth, old_depth)


def _gains(new: int, old: int) -> bool:
    return (old - new) * 100 >= GAIN_TREE_PERCENT * old and old > new


def _rooted_steadily(tree: Parents, old_root: int | None, network: Network) -> Parents:
    """Root a tree at its latency centre, or where it was if that is nearly as good."""
    eccentricity = eccentricities(tree, network.hop_us)
    best = min(eccentricity)
    if old_root is not None and not _gains(best, eccentricity[old_root]):
        return rerooted(tree, old_root)
    return rerooted(tree, eccentricity.index(best))
