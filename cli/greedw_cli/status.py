"""``status``: how the cluster is, seen from this machine."""

import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final

import typer

from greedw_cli import exits, figures
from greedw_cli.console import print_json, print_line
from greedw_cli.daemon import AsJson, StateDir, connect, convert
from greedw_cli.topology import expectation
from greedw_cli.tree_text import children_of, one_line
from greedw_daemon.control.client import ControlClient
from greedw_p2p.node.status import JobStatus, MemberStatus, NodeState, NodeStatus, TopologyStatus

HEALTHY: Final = "healthy"
_PACE_SAMPLE_S: Final = 0.5
"""How long the pace of a running job is watched for the time left."""

_TREE_NODES_MAX: Final = 16
_NAMED_MAX: Final = 8
_NOT_A_MEMBER: Final = frozenset({"joining", "leaving", "left"})

Line = tuple[str, str]


def status(
    context: typer.Context,
    *,
    as_json: AsJson = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 7 unless all is healthy, for scripts.")
    ] = False,
    state_dir: StateDir = None,
) -> None:
    """Show how the cluster is, seen from this machine."""
    client = connect(context, state_dir)
    answer = client.call("status")
    verdict = _print_answer(client, answer, as_json=as_json)
    if check and verdict != HEALTHY:
        raise typer.Exit(exits.DEGRADED)


def _print_answer(client: ControlClient, answer: dict[str, Any], *, as_json: bool) -> str:
    if not answer.get("prepared", True):
        if as_json:
            print_json(answer)
        else:
            print_line(_format("unprepared", "this daemon runs, but belongs to no cluster yet"))
            print_line(_format("next", "greedw init for a new cluster, or greedw join TOKEN"))
        return "unprepared"
    node = convert(answer, NodeStatus)
    verdict = verdict_of(node)
    if as_json:
        print_json(answer)
    else:
        for word, text in describe(node, _rounds_per_second(client, node)):
            print_line(_format(word, text))
    return verdict


def _format(word: str, text: str) -> str:
    first, *rest = text.splitlines() or [""]
    return "\n".join([f"{word:<11} {first}", *(f"{'':<11} {line}" for line in rest)])


def newest_job(node: NodeStatus) -> JobStatus | None:
    """Return the job that runs, or the one that ran last."""
    return node.jobs[-1] if node.jobs else None


def verdict_of(node: NodeStatus) -> str:
    """Return in one word how the cluster is."""
    if node.state is not NodeState.MEMBER and node.state is not NodeState.FROZEN:
        return node.state.value
    if node.state is NodeState.FROZEN or not node.hears_quorum:
        return "frozen"
    job = newest_job(node)
    if node.pause or (job is not None and job.state == "paused"):
        return "paused"
    return "degraded" if _unwell(node.members) else HEALTHY


def describe(node: NodeStatus, rounds_per_second: float | None) -> list[Line]:
    """Return the lines of the answer: the verdict first, then job, balance, tree, what to do."""
    verdict = verdict_of(node)
    lines = [(verdict, _headline(node, verdict, rounds_per_second))]
    lines += _members(node.members)
    lines += _missing(node.members)
    job = newest_job(node)
    if job is not None:
        lines.append(("job", _job_text(job)))
        if job.state == "running":
            lines += _balance(node.members, job)
    lines += _tree(node.topology)
    if (
        verdict not in _NOT_A_MEMBER and node.recoverable
    ):  # such a node can only wait, and the headline says for what
        lines.append(("next", _advice(node, verdict)))
    return lines


def _headline(node: NodeStatus, verdict: str, rounds_per_second: float | None) -> str:
    total = len(node.members)
    alive = total - len(_unwell(node.members))
    if not node.recoverable:
        return f"this cluster cannot go on\n{node.pause}"
    if verdict == "frozen":
        return (
            f"{alive} of {total} members reachable, {node.quorum} needed. Nothing is lost; "
            f"work goes on when enough of them return."
        )
    if verdict == "joining":
        return f'not yet a member of "{node.cluster}"\n{node.pause or "waiting to be admitted"}'
    if verdict in {"leaving", "left"}:
        return "this node is on its way out of the cluster; the others go on"
    text = f"{alive} of {total} members, quorum {node.quorum}"
    if 2 * node.quorum == total:  # exactly half suffices only with the senior member
        text += f" with {node.members[0].name}"
    job = newest_job(node)
    if job is not None and job.state in {"running", "paused"}:
        done = figures.percent(job.round / job.rounds, 0)
        text += f", round {job.round:,} of {job.rounds:,} ({done})"
        if rounds_per_second and job.state == "running":
            text += f", {figures.duration((job.rounds - job.round) / rounds_per_second)} left"
    reason = node.pause or (job.reason if job is not None and job.state == "paused" else "")
    return f"{text}\n{reason}" if reason else text


def _unwell(members: Iterable[MemberStatus]) -> list[MemberStatus]:
    return [member for member in members if member.state != "alive"]


def _members(members: Sequence[MemberStatus]) -> list[Line]:
    """Name the members, senior first, and who leads."""
    if not members:
        return []
    named = [m.name + (" (leads)" if m.is_leader else "") for m in members[:_NAMED_MAX]]
    if len(members) > _NAMED_MAX:
        named.append(f"and {len(members) - _NAMED_MAX} more")
    return [("members", ", ".join(named))]


def _missing(members: Iterable[MemberStatus]) -> list[Line]:
    unwell = _unwell(members)
    if not unwell:
        return []
    named = [
        f"{member.name} at {member.address} ({member.state}, {_last_heard(member)})"
        for member in unwell[:_NAMED_MAX]
    ]
    if len(unwell) > _NAMED_MAX:
        named.append(f"and {len(unwell) - _NAMED_MAX} more")
    return [("missing", "\n".join(named))]


def _last_heard(member: MemberStatus) -> str:
    return (
        "never heard" if member.heard_ms is None else f"last heard {figures.ago(member.heard_ms)}"
    )


def _job_text(job: JobStatus) -> str:
    text = f"{job.kind} ({job.id}) {job.state}, loss {figures.loss(job.loss)}"
    if job.accuracy is not None:
        text += f", accuracy {figures.percent(job.accuracy)} (round {job.accuracy_round:,})"
    return f"{text}\n{job.reason}" if job.reason and job.state != "paused" else text


def _balance(members: Iterable[MemberStatus], job: JobStatus) -> list[Line]:
    measured = [member for member in members if member.compute_ms > 0]
    if not measured:
        return []
    busy = sum(member.compute_ms + member.transfer_ms for member in measured)
    whole = busy + sum(member.wait_ms for member in measured)
    slowest = max(measured, key=lambda member: (member.compute_ms, member.name))
    text = (
        f"{figures.percent(busy / whole, 0)} busy; longest computing is {slowest.name} "
        f"({figures.millis(slowest.compute_ms)}, share {slowest.share} of {job.batch})"
    )
    return [("balance", text)]


def _tree(topology: TopologyStatus) -> list[Line]:
    if topology.root is None:
        return []
    parents = {edge.node: edge.parent for edge in topology.edges}
    text = one_line(topology.root, children_of(parents), _TREE_NODES_MAX)
    return [("tree", f"{text}\n{expectation(topology)}".strip())]


def _advice(node: NodeStatus, verdict: str) -> str:
    if verdict in {"frozen", "paused", "degraded"}:
        return _advice_on_trouble(node, verdict)
    job = newest_job(node)
    if job is not None and job.state in {"running", "preparing"}:
        return "greedw topology shows the tree, greedw stop ends the job"
    if len(node.members) == 1:
        return "greedw invite to add a machine, or greedw train mnist-2nn on this one alone"
    return "greedw train mnist-2nn"


def _advice_on_trouble(node: NodeStatus, verdict: str) -> str:
    unwell = _unwell(node.members)[:_NAMED_MAX]
    if not unwell:
        return "read the reason above; the daemons' logs have the details"
    # A connection that only broke, or a machine that slept, comes back as the same life.
    waiting = [member.name for member in unwell if member.state != "restarted"]
    lines: list[str] = []
    if waiting:
        verb = "is up and reaches" if len(waiting) == 1 else "are up and reach"
        lines.append(f"check that {figures.listing(waiting)} {verb} {node.address}")
    if verdict != "frozen":
        what = "it" if len(unwell) == 1 else "one"
        removal = ", ".join(f"greedw evict {member.name}" for member in unwell)
        lines.append(f"If {what} has ended or restarted, remove it: {removal}")
        lines.append("(work then goes on without it; a restarted machine joins anew)")
    return "\n".join(lines)


def _rounds_per_second(client: ControlClient, node: NodeStatus) -> float | None:
    """Watch a running job for a moment; None where nothing runs or no round ended meanwhile."""
    job = newest_job(node)
    if job is None or job.state != "running":
        return None
    begin = time.monotonic()
    time.sleep(_PACE_SAMPLE_S)
    later = newest_job(convert(client.call("status"), NodeStatus))
    if later is None or later.id != job.id or later.round <= job.round:
        return None
    return (later.round - job.round) / (time.monotonic() - begin)
