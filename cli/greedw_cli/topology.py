"""``topology``: the tree in force and the costs it was built from."""

import typer
from rich.table import Table

from greedw_cli import figures
from greedw_cli.console import make_console, print_json, print_line
from greedw_cli.daemon import AsJson, StateDir, connect, convert
from greedw_cli.tree_text import children_of, draw
from greedw_p2p.node.status import TopologyStatus


def topology(
    context: typer.Context, *, as_json: AsJson = False, state_dir: StateDir = None
) -> None:
    """Draw the tree that sums travel along, with what each link was measured to do."""
    answer = connect(context, state_dir).call("topology")
    if as_json:
        print_json(answer)
        return
    tree = convert(answer, TopologyStatus)
    if tree.root is None:
        print_line("There is no tree yet: this node has not been admitted to a cluster.")
        print_line("Next: greedw status")
        return
    for line in draw(tree.root, children_of(parents_of(tree))):
        print_line(line)
    print_line("")
    print_line("; ".join(filter(None, (expectation(tree), _measured(tree)))))
    if len(tree.edges) > 1:
        make_console().print(_edge_table(tree))


def parents_of(tree: TopologyStatus) -> dict[str, str | None]:
    """Return each node's parent by name, None for the root."""
    parents: dict[str, str | None] = {
        edge.node: None if edge.node == tree.root else edge.parent for edge in tree.edges
    }
    if tree.root is not None:
        parents.setdefault(tree.root, None)
    return parents


def expectation(tree: TopologyStatus) -> str:
    """Return in words what the plan expects of the tree, empty where it expects nothing yet.

    A measured round takes longer: it also computes, and waits for those that compute.
    """
    if tree.predicted_ms is None:
        return ""
    text = f"predicted by the links alone: {figures.millis(tree.predicted_ms)} a round"
    return text if tree.bound_ms is None else f"{text}, bound {figures.millis(tree.bound_ms)}"


def _measured(tree: TopologyStatus) -> str:
    return f"{tree.links_known} of {figures.plural(tree.links_wanted, 'link')} measured"


def _edge_table(tree: TopologyStatus) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("node")
    table.add_column("parent")
    for name in ("up", "down", "latency", "share"):
        table.add_column(name, justify="right")
    for edge in tree.edges:
        if edge.node == tree.root:
            continue
        share = tree.shares.get(edge.node)
        table.add_row(
            edge.node,
            edge.parent,
            figures.rate(edge.up_mbit),
            figures.rate(edge.down_mbit),
            figures.millis(edge.latency_ms),
            "-" if share is None else str(share),
        )
    return table
