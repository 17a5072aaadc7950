"""The node's status, put together from what its parts know. For people; nothing depends on it."""

from greedw_p2p.config import Member
from greedw_p2p.ids import NO_STATE, NodeId, StateDigest
from greedw_p2p.jobs.registry import layout_of
from greedw_p2p.jobs.spec import JobPhase, JobSpec, JobState
from greedw_p2p.limits import MIB
from greedw_p2p.links.cell import CODE_UNKNOWN, LinkCell
from greedw_p2p.links.scale import cost_ns_per_mib, latency_us
from greedw_p2p.log.ledger import Ledger
from greedw_p2p.membership.peers import Condition, Peer
from greedw_p2p.node.context import Context
from greedw_p2p.node.departure import phase_of
from greedw_p2p.node.desk import JobDesk
from greedw_p2p.node.open_entry import OpenEntry
from greedw_p2p.node.status import (
    EdgeStatus,
    JobStatus,
    MemberStatus,
    NodeState,
    NodeStatus,
    TopologyStatus,
)
from greedw_p2p.plan.plan import Plan
from greedw_p2p.plan.planner import make_plan
from greedw_p2p.view import RoundReport

_DEFAULT_GRADIENT_BYTES = 1 * MIB
"""Size for which the tree's time is predicted while no job has run."""

HOPELESS = (
    "Those who could decide have restarted and remember nothing, and this version cannot recover "
    "from that. On each machine: stop greedwd, start it again, greedw leave; then greedw init and "
    "greedw join anew"
)


def report_status(context: Context, entry: OpenEntry | None, desk: JobDesk) -> NodeStatus:
    """Return the whole status of a node."""
    ledger = context.ledger
    plan = None if ledger is None or not context.is_member else _plan_in_force(ledger)
    pause = pause_reason(context, entry)
    return NodeStatus(
        node=context.me.node,
        name=context.my_name,
        incarnation=context.me.incarnation,
        address=str(context.me.address),
        cluster=context.boot.cluster_name,
        lineage=context.lineage,
        state=_state_of(context),
        committed=0 if ledger is None else ledger.index,
        leader=None if ledger is None else context.name_of(ledger.leader),
        quorum=0 if ledger is None else quorum_needed(context, ledger),
        hears_quorum=context.hears_quorum,
        pause=pause,
        members=() if ledger is None else _members(context, ledger, plan),
        jobs=_jobs(context, desk, pause),
        topology=_topology(context, plan),
        recoverable=ledger is None or _can_recover(context, ledger),
    )


def pause_reason(context: Context, entry: OpenEntry | None) -> str:
    """Say why nothing moves: which peer, which link, which phase; empty where all is well."""
    ledger = context.ledger
    if ledger is None or not context.is_member:
        return _outside_reason(context)
    lost = [m for m in ledger.config.members if not context.peers.is_reachable(m.id)]
    if not lost:
        return _broken_reason(entry)
    told = "; ".join(_loss_of(context, member) for member in lost)
    if not context.hears_quorum:
        heard = len(ledger.config.members) - len(lost)
        total = len(ledger.config.members)
        needed = quorum_needed(context, ledger)
        told = f"no quorum: {heard} of {total} members reachable, {needed} needed; {told}"
        if not _can_recover(context, ledger):
            return f"{told}. {HOPELESS}"
    elif ledger.running_job is None and ledger.leader not in [m.node for m in lost]:
        return ""
    return f"{told}; phase {phase_of(entry, ledger)}"


def _outside_reason(context: Context) -> str:
    connected = [peer for peer in context.peers.all() if peer.connected]
    if context.leaving:
        return ""
    if not connected:
        known = ", ".join(f"{m.name} at {m.address}" for m in context.boot.contacts)
        return f"waiting to be admitted; nobody answers yet (known: {known or 'no address'})"
    ledger = context.ledger
    job = None if ledger is None else ledger.running_job
    if job is not None and ledger is not None:
        if ledger.config.find(context.me.node) is not None:
            name = context.my_name
            return (
                f"this machine restarted during job {job.spec.id}, which is paused until its old "
                f"life is removed: greedw evict {name} on another member. It is admitted anew when "
                "the job has ended"
            )
        return f"waiting to be admitted: that happens when job {job.spec.id} has ended"
    if context.ledger is None and all(_wants_in(peer) for peer in connected):
        return (
            "nobody that is reachable remembers the cluster: every member has restarted without "
            "leaving, and this version cannot recover from that. Wait for one that still runs; if "
            "there is none: greedw leave on each machine, then greedw init and greedw join anew"
        )
    return "waiting to be admitted"


def _wants_in(peer: Peer) -> bool:
    return peer.heartbeat is not None and peer.heartbeat.wants_in


def _has_restarted(context: Context, member: Member) -> bool:
    """Tell whether a later life of a member was met: the one that is a member is dead for sure."""
    newer = context.peers.find(member.node)
    return newer is not None and newer.member.incarnation > member.incarnation


def _can_recover(context: Context, ledger: Ledger) -> bool:
    """Tell whether the members that may still be alive can make a quorum."""
    config = ledger.config
    return config.is_quorum(m.id for m in config.members if not _has_restarted(context, m))


def quorum_needed(context: Context, ledger: Ledger) -> int:
    """Return how many members suffice: half of them where the senior one is heard."""
    config = ledger.config
    senior_heard = context.peers.is_reachable(config.ids[0])
    return config.quorum_size if senior_heard else len(config.members) // 2 + 1


def _broken_reason(entry: OpenEntry | None) -> str:
    if entry is None or entry.attempt is None:
        return ""
    if entry.attempt.broken:
        return entry.attempt.broken
    return "; ".join(entry.reported[member] for member in sorted(entry.reported))


def _loss_of(context: Context, member: Member) -> str:
    peer = context.peers.get(member.id)
    name = context.name_of(member.node)
    link = f"link {context.my_name} - {name}"
    if peer is None:
        if _has_restarted(context, member):
            return f"{name} has restarted and lost its memory ({link})"
        return f"{name} was never heard ({link}, {member.address})"
    heard = "" if peer.heard_us is None else f", last heard {_ago(context, peer.heard_us)} ago"
    if not peer.connected:
        return f"{name} is gone: {peer.lost} ({link}{heard})"
    if peer.silent:
        return f"{name} is silent ({link}{heard})"
    return f"{name} does not hear {context.my_name} ({link})"


def _ago(context: Context, then_us: int) -> str:
    return f"{max(0, context.now_us - then_us) / 1e6:.1f} s"


def _state_of(context: Context) -> NodeState:
    if context.leaving:
        return NodeState.LEAVING
    if not context.is_member:
        return NodeState.JOINING
    return NodeState.MEMBER if context.hears_quorum else NodeState.FROZEN


def _plan_in_force(ledger: Ledger) -> Plan:
    job = ledger.job
    units, nbytes = 0, _DEFAULT_GRADIENT_BYTES
    if job is not None:
        # Of a whole round: the last one of an epoch may be smaller, and would show other shares.
        units = min(job.spec.batch, job.spec.samples)
        nbytes = layout_of(job.spec).gradient.nbytes
    return make_plan(ledger.view, ledger.view.members, units, nbytes, ledger.leader)


def _members(context: Context, ledger: Ledger, plan: Plan | None) -> tuple[MemberStatus, ...]:
    return tuple(_member(context, ledger, plan, member) for member in ledger.config.members)


def _member(context: Context, ledger: Ledger, plan: Plan | None, member: Member) -> MemberStatus:
    report = context.reports.get(member.node, RoundReport(member.node, 0, 0, 0, 0, 0, 0))
    peer = context.peers.get(member.id)
    is_self = member.id == context.id
    heard = None if peer is None or peer.heard_us is None else context.now_us - peer.heard_us
    condition = context.peers.condition(member.id)
    state = (Condition.FAILED if condition is Condition.UNKNOWN else condition).value
    if _has_restarted(context, member):
        state = "restarted"
    return MemberStatus(
        id=member.node,
        name=context.name_of(member.node),
        incarnation=member.incarnation,
        address=str(member.address),
        state=state,
        heard_ms=None if is_self or heard is None else heard // 1000,
        is_leader=member.node == ledger.leader,
        is_self=is_self,
        committed=ledger.index if is_self else (0 if peer is None else peer.committed),
        share=0 if plan is None else plan.units_of(member.node)[1],
        compute_ms=report.compute_us / 1000,
        wait_ms=report.wait_us / 1000,
        transfer_ms=report.transfer_us / 1000,
        sent_bytes=context.sent_bytes.get(member.node, 0),
    )


def _jobs(context: Context, desk: JobDesk, pause: str) -> tuple[JobStatus, ...]:
    ledger = context.ledger
    if ledger is None:
        return ()
    told = list(ledger.jobs())
    jobs = [_job(context, state, pause, newest=state is told[-1]) for state in told]
    for spec, missing in desk.preparing():
        reason = f"waiting for {', '.join(missing)}" if missing else ""
        jobs.append(_job_status(spec, "preparing", None, {}, reason))
    return tuple(jobs)


def _job(context: Context, state: JobState, pause: str, *, newest: bool) -> JobStatus:
    running = state.phase is JobPhase.RUNNING
    # What holds up a node that is no member does not hold up the job.
    paused = running and bool(pause) and context.is_member
    digests = state_digests(context) if newest else context.final_digests.get(state.spec.id, {})
    name = "paused" if paused else state.phase.value
    return _job_status(state.spec, name, state, digests, pause if paused else state.reason)


def _job_status(
    spec: JobSpec, name: str, state: JobState | None, digests: dict[str, str], reason: str
) -> JobStatus:
    return JobStatus(
        id=spec.id,
        kind=spec.kind,
        state=name,
        round=0 if state is None else state.next_round,
        rounds=spec.rounds,
        epochs=spec.epochs,
        batch=spec.batch,
        samples=spec.samples,
        held_out=spec.held_out,
        loss=None if state is None else state.loss,
        accuracy=None if state is None else state.accuracy,
        accuracy_round=0 if state is None else state.evaluated,
        digests=digests,
        reason=reason,
    )


def state_digests(context: Context) -> dict[str, str]:
    """Return the state digests of the members that have the same round as this node.

    While a job runs, those are the ones at the same entry; afterwards, all that know of its end.
    """
    ledger = context.ledger
    if ledger is None:
        return {}
    found: dict[str, StateDigest] = {}
    if context.state is not None:  # else it is still computed, and the digest is of a round before
        found[context.my_name] = context.shown_state
    for peer in context.peers.all():
        heartbeat = peer.heartbeat
        if heartbeat is None or peer.member.id not in ledger.config:
            continue
        ended = ledger.running_job is None and heartbeat.committed >= ledger.job_changed_at
        if ended or heartbeat.entry_id == ledger.entry_id:
            found[context.name_of(peer.member.node)] = heartbeat.state
    return {name: found[name].hex() for name in sorted(found) if found[name] != NO_STATE}


def _topology(context: Context, plan: Plan | None) -> TopologyStatus:
    ledger = context.ledger
    if plan is None or ledger is None:
        return TopologyStatus(0, None, (), {}, None, None, 0, 0)
    cells = {(cell.writer, cell.peer): cell for cell in ledger.view.links}
    count = len(ledger.view.members)
    known = [cell for cell in ledger.view.links if CODE_UNKNOWN not in (cell.cost, cell.latency)]
    return TopologyStatus(
        entry=plan.entry,
        root=context.name_of(plan.tree.root),
        edges=tuple(
            _edge(context, cells, edge.node, edge.parent)
            for edge in plan.tree.edges
            if edge.node != edge.parent
        ),
        shares={context.name_of(quota.node): quota.units for quota in plan.quotas},
        predicted_ms=plan.predicted_ns / 1e6,
        bound_ms=plan.bound_ns / 1e6,
        links_known=len(known),
        links_wanted=count * (count - 1),
    )


def _edge(
    context: Context,
    cells: dict[tuple[NodeId, NodeId], LinkCell],
    node: NodeId,
    parent: NodeId,
) -> EdgeStatus:
    up, down = cells.get((parent, node)), cells.get((node, parent))
    latency = next(
        (latency_us(c.latency) / 1000 for c in (up, down) if c and c.latency != CODE_UNKNOWN), None
    )
    return EdgeStatus(
        node=context.name_of(node),
        parent=context.name_of(parent),
        up_mbit=_mbit(up),
        down_mbit=_mbit(down),
        latency_ms=latency,
    )


def _mbit(cell: LinkCell | None) -> float | None:
    """Return a link's rate in Mbit/s (10**6 bits), None while it is not measured."""
    if cell is None or cell.cost == CODE_UNKNOWN:
        return None
    return MIB * 8 * 1000 / cost_ns_per_mib(cell.cost)
