"""What an attempt covers, and the plan that each of its participants derives."""

from greedw_p2p.ids import MemberId, NodeId
from greedw_p2p.jobs.registry import layout_of
from greedw_p2p.jobs.spec import JobState
from greedw_p2p.log.entry import EntryKind
from greedw_p2p.plan.plan import Plan
from greedw_p2p.plan.planner import make_plan
from greedw_p2p.view import View


def units_of(kind: EntryKind, job: JobState) -> tuple[int, int]:
    """Return [start, stop) of what an attempt covers: a round's samples or the held-out ones."""
    if kind is EntryKind.EVALUATION:
        return 0, job.spec.held_out
    return job.spec.batch_range(job.next_round)


def plan_attempt(
    view: View, job: JobState, kind: EntryKind, participants: tuple[MemberId, ...], root: NodeId
) -> Plan:
    """Return the plan that every participant of an attempt derives."""
    start, stop = units_of(kind, job)
    nbytes = layout_of(job.spec).gradient.nbytes if kind is EntryKind.ROUND else 0
    nodes = tuple(sorted(member.node for member in participants))
    return make_plan(view, nodes, stop - start, nbytes, root)
