"""Departure: how a node leaves, and when it may stop.

A member that leaves keeps voting and serving until its removal is committed and a quorum of those
who stay know it; only then does it stop, so that nobody is left without the entry that removed it.
"""

from greedw_p2p.ids import EntryIndex
from greedw_p2p.limits import TICK_US
from greedw_p2p.log.entry import Entry
from greedw_p2p.log.ledger import Ledger
from greedw_p2p.node.context import Context
from greedw_p2p.node.effects import Reply, Severity, Stopped
from greedw_p2p.node.open_entry import OpenEntry
from greedw_p2p.wire.messages import Fault

LEAVE_WITHIN_US = 15_000_000
"""How long a user's wish to leave waits for a leader that can act, before it is given up."""

OUTSIDE_TICKS = 4
"""How long a node that is no member says that it leaves before it stops."""


class Departure:
    """This node's way out."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._request: int | None = None
        self._begun_us = 0
        self._deadline_us = 0
        self._removed_at: EntryIndex | None = None
        self._stopped = False

    def begin(self, request: int | None) -> None:
        """Start to leave; ``tick`` stops the node when it may go."""
        context = self._context
        if self._request is not None and request is not None:
            context.out.emit(Reply(request, "this node is leaving already"))
            return
        self._request = request if self._request is None else self._request
        if not context.leaving:
            self._begun_us = context.now_us
        self._deadline_us = context.now_us + LEAVE_WITHIN_US
        context.leaving = True
        context.out.note(Severity.INFO, "leaving")

    def tick(self) -> None:
        """Stop when it is time; give up a request that nobody answers."""
        context = self._context
        if not context.leaving or self._stopped:
            return
        if self._may_stop():
            self._stop()
        elif self._removed_at is not None:
            # Those who stay should learn of it from here; whoever is not heard for so long will
            # have to learn it elsewhere.
            if context.now_us >= self._deadline_us:
                self._stop()
        elif context.leader_acts:
            # It comes when the round in progress has ended.
            self._deadline_us = context.now_us + LEAVE_WITHIN_US
        elif self._request is not None and context.now_us >= self._deadline_us:
            self._give_up(self._request)

    def committed(self, entry: Entry) -> None:
        """Note the entry that removed this node."""
        context = self._context
        if context.leaving and self._removed_at is None and context.id not in entry.config:
            self._removed_at = entry.index
            self._deadline_us = context.now_us + LEAVE_WITHIN_US

    def _may_stop(self) -> bool:
        context = self._context
        ledger = context.ledger
        if ledger is None:
            return True
        if self._removed_at is None:
            if context.is_member:
                return len(ledger.config.members) == 1
            # The entry that admits it may be on its way: as a dead member it would be missed.
            return context.now_us >= self._begun_us + OUTSIDE_TICKS * TICK_US
        if ledger.index > self._removed_at:
            return True
        knowing = [
            peer.member.id
            for peer in context.peers.all()
            if (peer.committed >= self._removed_at and peer.heartbeat is not None)
            # All leave together: one that has gone itself needs to know nothing any more.
            or peer.has_left
        ]
        return ledger.config.is_quorum(knowing)

    def _give_up(self, request: int) -> None:
        """Stay a member: nobody is there to take this node out."""
        context = self._context
        leader = "unknown" if context.leader is None else context.name_of(context.leader.node)
        error = (
            f"the leader ({leader}) is not reachable, or reaches no quorum, for "
            f"{LEAVE_WITHIN_US // 1_000_000} s; this node stays a member"
        )
        context.leaving = False
        context.out.emit(Reply(request, error, fault=Fault.UNREACHABLE))
        self._request = None

    def _stop(self) -> None:
        self._stopped = True
        if self._request is not None:
            self._context.out.emit(Reply(self._request))
        self._context.out.emit(Stopped("left the cluster"))


def phase_of(entry: OpenEntry | None, ledger: Ledger | None) -> str:
    """Return what a node is doing, for the log and for people."""
    if ledger is None or entry is None:
        return "joining"
    job = ledger.running_job
    if job is None:
        return "idle"
    step = f"round {job.next_round + 1} of {job.spec.rounds}"
    if entry.attempt is None:
        return f"{step}, waiting for its start"
    if entry.finished is None:
        return f"{step}, compute and all-reduce"
    return f"{step}, agreement"
