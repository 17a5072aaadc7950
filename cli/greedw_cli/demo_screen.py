"""What the demo shows: stages, the live table, the summary, and the same as one JSON object."""

import contextlib
import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from greedw_cli import figures
from greedw_cli.jobs import SCHEMA, result_sentence
from greedw_cli.pace import Pace
from greedw_cli.progress import Reporter
from greedw_cli.topology import expectation, parents_of
from greedw_cli.tree_text import children_of, draw
from greedw_p2p.node.status import JobStatus, MemberStatus, NodeStatus, TopologyStatus

_STAGE_COLUMNS_MAX: Final = 80
"""Where the times end on a wider screen: not too far from what they belong to."""

_LEARNED_ACCURACY: Final = 0.5
_HARDLY_LEARNED: Final = (
    "The training has diverged or hardly learned: that is no good result. Try more --epochs, "
    "a --batch of 64 to 512, or another --seed."
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the demo. ``working`` is the status while rounds ran, ``final`` the last one."""

    job: JobStatus
    seconds: float
    round_ms_median: float | None
    working: NodeStatus
    final: NodeStatus
    digests: dict[str, str]

    @property
    def replicas_identical(self) -> bool:
        """Tell whether every daemon named one and the same digest."""
        return len(set(self.digests.values())) == 1 and all(self.digests.values())

    @property
    def rounds_per_second(self) -> float:
        """Rounds per second over the whole training, evaluations included."""
        return self.job.round / max(self.seconds, 1e-9)


class DemoScreen:
    """The console of the demo: a live table on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console, names: Sequence[str]) -> None:
        self.console = console
        self._names = names
        self._node: NodeStatus | None = None
        self._reporter = Reporter(console, self._below_the_bar)

    def say(self, text: str) -> None:
        """Print one line."""
        self.console.print(Text(text), soft_wrap=True)

    @contextlib.contextmanager
    def stage(self, text: str) -> Generator[list[str]]:
        """Print what is being done, and behind it the result put into the list and the time."""
        begin_s = time.monotonic()
        result: list[str] = []
        self.console.print(Text(text), end="", soft_wrap=True)
        try:
            yield result
        except BaseException:
            self.console.print()
            raise
        rest = " ".join(["", *result])
        took = f"{time.monotonic() - begin_s:.1f} s"
        columns = min(self.console.width, _STAGE_COLUMNS_MAX)
        padding = " " * max(1, columns - len(text) - len(rest) - len(took))
        self.console.print(Text(rest + padding + took), soft_wrap=True)

    @contextlib.contextmanager
    def live(self) -> Generator[None]:
        """Keep the live table on the screen, and leave its last state there."""
        with self._reporter:
            yield
        for renderable in self._below_the_bar():
            self.console.print(renderable)

    def show(self, node: NodeStatus, job: JobStatus, pace: Pace, now_s: float) -> None:
        """Show the newest status."""
        if job.state == "running" or self._node is None:
            self._node = node
        self._reporter.show(job, pace, now_s)

    def _below_the_bar(self) -> list[RenderableType]:
        node = self._node
        if node is None:
            return []
        batch = node.jobs[-1].batch if node.jobs else 0
        # By name, not in the order of admission, which is a race among equals.
        members = sorted(node.members, key=lambda member: self._names.index(member.name))
        return [
            Text(),
            _indented(_node_table(members, batch)),
            Text(),
            *(Text("  " + line, no_wrap=True) for line in tree_lines(node.topology)),
        ]


def print_summary(console: Console, outcome: Outcome, *, kept: Path | None) -> None:
    """Print how it ended, for people."""
    job = outcome.job
    median = figures.millis(outcome.round_ms_median)
    console.print()
    # Wrapped between words where the terminal is narrow.
    console.print(Text(result_sentence(job, outcome.seconds, embedded=True)))
    console.print(Text(f"{outcome.rounds_per_second:.1f} rounds/s, median {median} a round."))
    if job.accuracy is not None and job.accuracy < _LEARNED_ACCURACY:
        console.print(Text(_HARDLY_LEARNED, style="yellow"))
    console.print()
    console.print(_indented(_replica_table(outcome)))
    console.print()
    left = "Nothing was left behind." if kept is None else f"State and logs are kept in {kept}."
    for line in (_agreement(outcome), left):
        console.print(Text(line), soft_wrap=True)
    console.print(
        Text("Next: greedw init here, greedw invite, and greedw join on another machine."),
        soft_wrap=True,
    )


def _agreement(outcome: Outcome) -> str:
    if outcome.replicas_identical:
        digest = next(iter(outcome.digests.values()))
        if len(outcome.digests) == 1:
            return f"The replica's digest: {digest}."
        return f"All {len(outcome.digests)} replicas are identical: {digest}."
    kinds = Counter(outcome.digests.values())
    return f"THE REPLICAS DIFFER: {len(kinds)} kinds among {len(outcome.digests)}."


def as_json_object(outcome: Outcome) -> dict[str, Any]:
    """Return the demo's answer for programs."""
    job, tree = outcome.job, outcome.working.topology
    return {
        "schema": SCHEMA,
        "nodes": len(outcome.digests),
        "model": job.kind,
        "epochs": job.epochs,
        "batch": job.batch,
        "samples": job.samples,
        "held_out": job.held_out,
        "rounds": job.round,
        "loss": job.loss,
        "accuracy": job.accuracy,
        "replicas_identical": outcome.replicas_identical,
        "state_digests": outcome.digests,
        "seconds": round(outcome.seconds, 3),
        "rounds_per_second": round(outcome.rounds_per_second, 3),
        "round_ms_median": outcome.round_ms_median,
        "tree": parents_of(tree),
        "predicted_ms": tree.predicted_ms,
        "bound_ms": tree.bound_ms,
        "shares": {member.name: member.share for member in outcome.working.members},
        "sent_bytes": {member.name: member.sent_bytes for member in outcome.final.members},
    }


def tree_lines(tree: TopologyStatus) -> list[str]:
    """Return the drawing of the tree, and below it what the plan expects of it."""
    if tree.root is None:
        return []
    lines = draw(tree.root, children_of(parents_of(tree)))
    if len(lines[0]) > len(tree.root) and tree.predicted_ms is not None:
        lines += ["", expectation(tree)]
    return lines


def _indented(table: Table) -> Padding:
    return Padding(table, (0, 0, 0, 2), expand=False)


def _node_table(members: Sequence[MemberStatus], batch: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("node")
    for name in ("share", "compute", "transfer", "wait"):
        table.add_column(name, justify="right")
    table.add_column("state")
    for member in members:
        # In a healthy cluster the word that matters is who leads.
        state = member.state if member.state != "alive" else "leader" if member.is_leader else ""
        table.add_row(
            member.name,
            f"{member.share} / {batch}",
            figures.millis(member.compute_ms),
            figures.millis(member.transfer_ms),
            figures.millis(member.wait_ms),
            state,
        )
    return table


def _replica_table(outcome: Outcome) -> Table:
    sent = {member.name: member.sent_bytes for member in outcome.final.members}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("node")
    table.add_column("sent", justify="right")
    table.add_column("replica")
    for name, digest in outcome.digests.items():
        table.add_row(name, figures.size(sent.get(name, 0)), digest or "unknown")
    return table
