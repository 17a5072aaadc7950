"""Voting: the part of a node that takes part in attempts, accepts entries and commits them.

Rules:

1. Nothing of an accepted entry leaves this node before it is committed; only the second copy of
   the state is computed ahead, and a commit makes it current.
2. An entry is acknowledged only when the state before it and all its bytes are in memory, after a
   change of the config was persisted.
3. A commit whose bytes are still on their way waits for them; messages of later entries wait too.
4. A node whose worker has failed is blind for its job, and so is one that is no member: it commits
   without applying, and votes without knowing the state, so that the end of the job can be decided
   and known everywhere. It still acknowledges a round only when it has the bytes.
5. A START names the view and the plan by digest. A node that computes others says so, by name, and
   does not sum.
"""

from collections.abc import Callable

from greedw_p2p.ids import NO_STATE, Ballot, EntryId, JobId, MemberId, NodeId, StateDigest, short
from greedw_p2p.jobs.spec import JobPhase, JobState
from greedw_p2p.log.entry import Entry, EntryKind
from greedw_p2p.log.ledger import Ledger
from greedw_p2p.node.attempt_plan import plan_attempt, units_of
from greedw_p2p.node.context import Context
from greedw_p2p.node.effects import (
    ApplyResult,
    BeginAttempt,
    CancelAttempt,
    Committed,
    FlipState,
    Severity,
    Stopped,
    UnloadJob,
)
from greedw_p2p.node.events import AttemptBroken, AttemptFinished, StateApplied
from greedw_p2p.node.fetching import fetch_unless_coming, note_failed_fetch
from greedw_p2p.node.open_entry import Attempt, OpenEntry
from greedw_p2p.plan.plan import Plan
from greedw_p2p.view import View
from greedw_p2p.wire.messages import Accept, Ack, Broken, Nack, Prepare, Promise, Start


class Voting:
    """The acceptor's and participant's half of a node."""

    def __init__(self, context: Context, on_commit: Callable[[Entry], None]) -> None:
        self._context = context
        self._on_commit = on_commit
        self._ended: JobId | None = None
        self.open: OpenEntry | None = None
        if context.ledger is not None:
            self.open = OpenEntry.after(context.ledger, context.id)

    def on_prepare(self, sender: MemberId, message: Prepare) -> None:
        """Promise, unless a higher ballot was promised."""
        entry = self._opened()
        if sender not in self._ledger().config or message.ballot.owner != sender.node:
            return
        if not entry.acceptor.promise(message.ballot):
            self._refuse(sender, message.ballot)
            return
        accepted = entry.acceptor
        promise = Promise(
            entry.index, entry.previous, message.ballot, accepted.accepted_ballot, accepted.accepted
        )
        self._context.out.send(sender, promise)

    def on_start(self, sender: MemberId, message: Start) -> None:
        """Join the attempt of a ballot that is not below what was promised."""
        entry = self._opened()
        ballot = message.ballot
        if not self._may_own(sender, ballot) or self._context.id not in message.participants:
            return
        if entry.acceptor.refuses(ballot):
            self._refuse(sender, ballot)
            return
        if entry.attempt is not None and ballot <= entry.attempt.ballot:
            if ballot == entry.attempt.ballot and entry.attempt.broken:
                self._tell_broken(entry, entry.attempt)
            return
        job = self._ledger().running_job
        if job is None or self._context.is_blind:
            return
        plan = plan_attempt(
            self._ledger().view, job, message.kind, message.participants, ballot.owner
        )
        if message.view != plan.view_digest or message.plan != plan.digest():
            self._tell_mismatch(sender, message, plan)
            return
        entry.attempt = Attempt(ballot, message.kind, plan, message.participants)
        entry.finished = None
        self._begin(entry, entry.attempt, job)

    def on_finished(self, event: AttemptFinished) -> None:
        """Take the result of the running attempt, or of a fetch; wake what waited for it."""
        entry = self.open
        if entry is None or event.index != entry.index:
            return
        fetched = entry.fetching is not None and entry.fetching == event.digest
        running = entry.attempt is not None and entry.attempt.ballot == event.ballot
        if not running and not fetched:
            return
        entry.finished = event
        entry.fetching = None
        self._wake()

    def on_broken(self, event: AttemptBroken) -> None:
        """Tell the ballot's owner that the attempt cannot end here; or try a fetch again later."""
        entry = self.open
        if entry is None or event.index != entry.index:
            return
        if entry.fetching is not None:
            note_failed_fetch(self._context, entry, event)
            return
        attempt = entry.attempt
        if attempt is None or event.ballot != attempt.ballot or attempt.broken:
            return
        context = self._context
        link = f"link {context.my_name} - {context.name_of(event.peer)}"
        attempt.broken = f"{link}: {event.reason} ({event.phase})"
        context.out.note(
            Severity.WARNING,
            "attempt broken",
            entry=entry.index,
            peer=context.name_of(event.peer),
            link=link,
            phase=event.phase,
            reason=event.reason,
        )
        self._tell_broken(entry, attempt)
        self._wake()

    def on_accept(self, sender: MemberId, message: Accept) -> None:
        """Accept and acknowledge, now or when the bytes and the state are here."""
        entry = self._opened()
        if not self._may_own(sender, message.ballot) or not message.entry.is_finite:
            return
        if entry.acceptor.refuses(message.ballot):
            self._refuse(sender, message.ballot)
            return
        waiting = entry.waiting_accept
        if waiting is not None and waiting[1].ballot > message.ballot:
            return
        entry.waiting_accept = (sender, message)
        entry.holder = message.holder
        self._wake()

    def on_commit(self, committed: Entry) -> None:
        """Commit a chosen entry, now or when its bytes are here."""
        entry = self._opened()
        entry.waiting_commit = committed
        self._wake()

    def tick(self) -> None:
        """Look again for bytes that have not come."""
        self._wake()

    def on_later(self, newest: Entry) -> None:
        """Give up a state whose last bytes nobody has: the job has ended elsewhere since."""
        entry = self.open
        job = self._ledger().running_job if entry is not None else None
        if entry is None or job is None or entry.waiting_commit is None:
            return
        ended = newest.job != job and (
            newest.job is None
            or newest.job.spec.id != job.spec.id
            or newest.job.phase is not JobPhase.RUNNING
        )
        if ended and entry.fetches_failed:
            self._context.lost_job = job.spec.id
            self._context.out.note(
                Severity.WARNING,
                "state given up",
                job=job.spec.id,
                entry=entry.index,
                reason="the job has ended, and nobody has the result of its last round any more",
            )
            self._wake()

    def on_applied(self, event: StateApplied) -> None:
        """Take the digest of a state the worker has computed."""
        context = self._context
        entry = self.open
        if entry is not None and event.entry_id in entry.speculated:
            entry.speculated[event.entry_id] = event.state
        if context.ledger is not None and context.ledger.entry_id == event.entry_id:
            self._set_state(event.state)
            self._unload_when_applied()
        self._wake()

    def on_worker_failed(self) -> None:
        """Carry on blindly with what waited for a state that will never be computed."""
        self._unload_when_applied()
        self._wake()

    def implied_commit(self, previous: EntryId) -> bool:
        """Commit the accepted entry if a message of the entry after it names it."""
        entry = self.open
        accepted = None if entry is None else entry.acceptor.accepted
        if entry is None or accepted is None or accepted.id() != previous:
            return False
        self.on_commit(accepted)
        return self.open is not entry

    def adopt(self, entry: Entry, view: View) -> None:
        """Jump to a later entry, with the view after it; no state comes with it."""
        context = self._context
        if context.ledger is None:
            context.ledger = Ledger(entry, view)
        else:
            if self.open is not None and self.open.attempt is not None:
                context.out.emit(CancelAttempt(self.open.index, self.open.attempt.ballot))
            before = context.ledger.running_job
            if before is not None:
                context.out.emit(UnloadJob(before.spec.id, None))
            context.ledger.adopt(entry, view)
        self._ended = None
        self.open = OpenEntry.after(context.ledger, context.id)
        context.shown_state = NO_STATE
        context.state = NO_STATE if context.ledger.running_job is None else None
        self._on_commit(entry)

    @property
    def is_settled(self) -> bool:
        """Tell whether everything committed is applied here."""
        entry = self.open
        return (
            entry is not None
            and entry.waiting_commit is None
            and (self._context.state is not None or self._context.is_blind)
        )

    def _begin(self, entry: OpenEntry, attempt: Attempt, job: JobState) -> None:
        context = self._context
        start, stop = units_of(attempt.kind, job)
        ledger = self._ledger()
        news = context.links.newer_than(ledger.view.links, ledger.config.nodes)
        links = tuple(cell for cell in news if cell.writer == context.me.node)
        context.out.emit(
            BeginAttempt(
                lineage=context.lineage,
                index=entry.index,
                ballot=attempt.ballot,
                kind=attempt.kind,
                plan=attempt.plan,
                spec=job.spec,
                round_number=job.next_round,
                start=start,
                stop=stop,
                participants=attempt.participants,
                links=links,
            )
        )

    def _wake(self) -> None:
        """Carry on with what waited, the commit first."""
        entry = self.open
        if entry is None:
            return
        blind = self._context.is_blind
        if self._context.state is None and not blind:
            return
        committed = entry.waiting_commit
        if committed is not None:
            if entry.holds(committed) or blind:
                self._commit(entry, committed)
            else:
                fetch_unless_coming(self._context, entry, committed)
            return
        if entry.waiting_accept is None:
            return
        sender, message = entry.waiting_accept
        if entry.holds(message.entry):
            entry.waiting_accept = None
            self._accept(entry, sender, message)
        else:
            fetch_unless_coming(self._context, entry, message.entry)

    def _accept(self, entry: OpenEntry, sender: MemberId, message: Accept) -> None:
        context = self._context
        value = message.entry
        if context.id not in self._ledger().config or entry.acceptor.refuses(message.ballot):
            return
        if self._contradicts(value):
            self._alarm_divergence(value.state, sender)
            return
        self._persist_before_ack(entry, message)
        entry.acceptor.accept(message.ballot, value)
        if self._is_to_apply(entry, value):
            self._apply(entry, value)
        ack = Ack(entry.index, entry.previous, message.ballot, value.id(), value.state)
        context.out.send(sender, ack)

    def _contradicts(self, value: Entry) -> bool:
        """Tell whether an entry starts from another state than this replica has.

        A blind leader ends its job without naming a state.
        """
        job = value.job
        unnamed = value.state == NO_STATE and job is not None and job.phase is JobPhase.FAILED
        return value.state != self._context.state and not unnamed and not self._context.is_blind

    def _is_to_apply(self, entry: OpenEntry, value: Entry) -> bool:
        is_new = value.kind is EntryKind.ROUND and value.id() not in entry.speculated
        return is_new and not self._context.is_blind

    def _persist_before_ack(self, entry: OpenEntry, message: Accept) -> None:
        """Write the config that votes and the one that would follow, if either is new to disk."""
        ledger = self._ledger()
        changes = message.entry.config != ledger.config
        accepted = (entry.index, message.ballot, message.entry.config) if changes else None
        self._context.persist(ledger.index, ledger.config, accepted)

    def _apply(self, entry: OpenEntry, value: Entry) -> None:
        job = self._ledger().running_job
        assert job is not None, "a round belongs to a running job"
        assert value.outcome is not None, "a round has an outcome"
        # Only the newest speculation is in the second copy.
        entry.speculated = {value.id(): None}
        self._context.out.emit(
            ApplyResult(
                entry_id=value.id(),
                digest=value.result,
                samples=value.outcome.samples,
                spec=job.spec,
                round_number=job.next_round,
            )
        )

    def _commit(self, entry: OpenEntry, value: Entry) -> None:
        context = self._context
        ledger = self._ledger()
        if self._is_to_apply(entry, value):
            self._apply(entry, value)
        if value.id() in entry.speculated:
            context.out.emit(FlipState(value.id()))
        if entry.attempt is not None and entry.finished is None:
            context.out.emit(CancelAttempt(entry.index, entry.attempt.ballot))
        before = ledger.running_job
        ledger.commit(value)
        self._move_state(entry, before, value)
        for report in value.delta.reports:
            context.reports[report.node] = report
            sent = context.sent_bytes.get(report.node, 0)
            context.sent_bytes[report.node] = sent + report.sent_bytes
        self.open = OpenEntry.after(ledger, context.id)
        context.persist(ledger.index, ledger.config, None)
        context.out.emit(Committed(value))
        self._on_commit(value)

    def _move_state(self, entry: OpenEntry, before: JobState | None, value: Entry) -> None:
        """Bring the state's digest to what holds after the entry."""
        context = self._context
        running = self._ledger().running_job
        if value.kind is EntryKind.ROUND:
            digest = entry.speculated.get(value.id())
            if digest is None:
                context.state = None
            else:
                self._set_state(digest)
        if before is None and running is not None:
            context.out.note(
                Severity.INFO,
                "job started",
                job=running.spec.id,
                rounds=running.spec.rounds,
                members=len(value.config.members),
            )
            context.reports.clear()
            context.sent_bytes.clear()
            self._set_state(running.initial_state)
        if before is not None and running is None:
            self._ended = before.spec.id
            self._note_end(value.job)
            self._unload_when_applied()

    def _unload_when_applied(self) -> None:
        """End the worker of a job that has ended, once its last state is computed."""
        context = self._context
        if self._ended is None:
            return
        if context.state is None:
            if context.computes(self._ended):
                return
            context.shown_state = NO_STATE
        context.out.emit(UnloadJob(self._ended, self._ledger().job))
        context.state = NO_STATE
        self._ended = None

    def _note_end(self, ended: JobState | None) -> None:
        if ended is None:
            return
        failed = ended.phase is JobPhase.FAILED
        self._context.out.note(
            Severity.ERROR if failed else Severity.INFO,
            f"job {ended.phase.value}",
            job=ended.spec.id,
            round=ended.next_round,
            loss=ended.loss,
            accuracy=ended.accuracy,
            reason=ended.reason,
        )

    def _set_state(self, digest: StateDigest) -> None:
        """Take the digest of the state after the newest committed entry."""
        self._context.shown_state = digest
        self._context.state = digest

    def _tell_broken(self, entry: OpenEntry, attempt: Attempt) -> None:
        owner = self._member_of(attempt.ballot.owner)
        if owner is not None:
            reason = f"{self._context.my_name}: {attempt.broken}"[:1000]
            broken = Broken(entry.index, entry.previous, attempt.ballot, reason)
            self._context.out.send(owner, broken)

    def _may_own(self, sender: MemberId, ballot: Ballot) -> bool:
        """Tell whether a ballot is its sender's to use: ballot 0 is the leader's alone."""
        ledger = self._ledger()
        if sender not in ledger.config or ballot.owner != sender.node:
            return False
        return ballot.number > 0 or ballot.owner == ledger.leader

    def _refuse(self, sender: MemberId, ballot: Ballot) -> None:
        entry = self._opened()
        promised = entry.acceptor.promised
        assert promised is not None, "only a promise refuses"
        self._context.out.send(sender, Nack(entry.index, entry.previous, ballot, promised))

    def _tell_mismatch(self, sender: MemberId, message: Start, plan: Plan) -> None:
        what = "view" if message.view != plan.view_digest else "plan"
        reason = (
            f"{self._context.my_name} derives another {what} for entry {message.index} than "
            f"{self._context.name_of(sender.node)}: the nodes run different versions"
        )
        self._context.out.note(
            Severity.ERROR, f"{what} mismatch", entry=message.index, reason=reason
        )
        broken = Broken(message.index, message.previous, message.ballot, reason)
        self._context.out.send(sender, broken)

    def _alarm_divergence(self, theirs: StateDigest, sender: MemberId) -> None:
        mine = self._context.state or NO_STATE
        reason = (
            f"this replica's state {short(mine)} differs from {short(theirs)} at "
            f"{self._context.name_of(sender.node)} before entry {self._ledger().index + 1}"
        )
        self._context.out.note(Severity.ERROR, "replica diverged", reason=reason)
        self._context.out.emit(Stopped(reason, failed=True))

    def _member_of(self, node: NodeId) -> MemberId | None:
        member = self._ledger().config.find(node)
        return None if member is None else member.id

    def _ledger(self) -> Ledger:
        assert self._context.ledger is not None, "votes are cast on a known log"
        return self._context.ledger

    def _opened(self) -> OpenEntry:
        assert self.open is not None, "votes are cast on the open entry"
        return self.open
