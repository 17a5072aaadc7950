"""Leading: the part of a node that proposes entries.

Rules:

1. The leader of an entry first carries out what changes the config or the job; otherwise the next
   round of the running job; otherwise it publishes new measurements. With none of these the log
   stands still.
2. A round starts only when every participant is heard. In this version a participant that is lost
   pauses the job: nothing is computed without it.
3. An attempt that cannot end is replaced by a higher ballot of the same leader: with the change
   that is wanted, or with a new attempt when all participants are back.
4. Members that an operator evicts are removed by the next entry; if the leader is one of them, the
   node that was asked takes its place with a higher ballot.
5. The next leader is the root that the plan of the next view prefers, if it hears a quorum; but
   this node, while it has a change to propose.
"""

import math
from dataclasses import dataclass

from greedw_p2p.config import Config, Member
from greedw_p2p.ids import NO_CONTENT, NO_STATE, Ballot, EntryIndex, MemberId, NodeId
from greedw_p2p.jobs.spec import JobPhase, JobState
from greedw_p2p.limits import MEMBERS_MAX, TICK_US
from greedw_p2p.links.cell import LinkCell
from greedw_p2p.log.entry import Entry, EntryKind, RoundOutcome
from greedw_p2p.log.ledger import Ledger
from greedw_p2p.log.proposer import Phase, Promised
from greedw_p2p.membership.rumour import Liveness
from greedw_p2p.node.attempt_plan import plan_attempt
from greedw_p2p.node.context import Context
from greedw_p2p.node.desk import JobDesk
from greedw_p2p.node.effects import Severity
from greedw_p2p.node.events import AttemptFinished
from greedw_p2p.node.evictions import Evictions
from greedw_p2p.node.open_entry import OpenEntry
from greedw_p2p.node.voting import Voting
from greedw_p2p.plan.fold import preferred_root
from greedw_p2p.view import ViewDelta
from greedw_p2p.wire.messages import Accept, Ack, Broken, Commit, Nack, Prepare, Promise, Start

MEASUREMENTS_EVERY_US = 1_000_000
"""Least time between two entries that carry nothing but measurements."""

RESEND_TICKS = 4
RETRY_TICKS_MAX = 32
JOINER_LAG = 4
"""Entries that a newcomer may be behind when it is admitted."""


@dataclass(frozen=True, slots=True)
class _Change:
    """What a config entry would change."""

    removed: tuple[MemberId, ...]
    joined: tuple[Member, ...]
    job: JobState | None


class Leading:
    """The proposer's half of a node."""

    def __init__(
        self, context: Context, voting: Voting, desk: JobDesk, evictions: Evictions
    ) -> None:
        self._context = context
        self._voting = voting
        self._desk = desk
        self._evictions = evictions
        self._measured_us = 0

    @property
    def leads(self) -> bool:
        """Tell whether this node owns ballot 0 of the next entry."""
        ledger = self._context.ledger
        return (
            ledger is not None
            and self._context.is_member
            and ledger.leader == self._context.me.node
        )

    def advance(self) -> None:
        """Do what can be done now; called after every event."""
        entry = self._voting.open
        if entry is None or not self._may_propose(entry) or not self._voting.is_settled:
            return
        proposer = entry.proposer
        if proposer.phase is Phase.IDLE:
            self._open_ballot(entry)
        elif proposer.phase is Phase.OPEN and self._is_stuck(entry):
            self._replace_attempt(entry)

    def tick(self) -> None:
        """Repeat to the silent what they may have missed."""
        entry = self._voting.open
        if entry is None or self._context.now_us < entry.resend_us:
            return
        entry.resend_us = self._context.now_us + RESEND_TICKS * TICK_US
        ballot = entry.proposer.ballot
        if ballot is None:
            return
        out = self._context.out
        silent = entry.proposer.silent()
        match entry.proposer.phase:
            case Phase.PREPARING:
                out.send_all(silent, Prepare(entry.index, entry.previous, ballot))
            case Phase.ACCEPTING if entry.proposer.value is not None:
                value = entry.proposer.value
                out.send_all(silent, Accept(ballot, value, entry.proposer.holder))
            case Phase.OPEN if entry.attempt is not None and entry.attempt.ballot == ballot:
                start = self._start_message(entry, ballot, entry.attempt.kind)
                others = tuple(m for m in entry.attempt.participants if m != self._context.id)
                out.send_all(others, start)
            case _:
                pass

    def _may_propose(self, entry: OpenEntry) -> bool:
        """Tell whether the entry is this node's to propose: as leader, or in a leader's place."""
        return self.leads or entry.proposer.ballot is not None or self._evictions.takes_over

    def resend_to(self, member: MemberId) -> None:
        """Repeat the present step to everybody at the next tick: a connection is new."""
        entry = self._voting.open
        if entry is not None and member in self._ledger().config:
            entry.resend_us = 0

    def on_promise(self, sender: MemberId, message: Promise) -> None:
        """Count a promise; go on when they are a quorum."""
        entry = self._voting.open
        if entry is None:
            return
        promised = Promised(message.accepted_ballot, message.accepted)
        if not entry.proposer.on_promise(sender, message.ballot, promised):
            return
        if entry.proposer.value is not None:
            self._propose(entry, entry.proposer.value)
        else:
            self._run_plan(entry)

    def on_nack(self, message: Nack) -> None:
        """Leave a ballot that somebody has promised to stay out of."""
        entry = self._voting.open
        if entry is not None:
            entry.proposer.refused(message.promised)
            entry.retry_us = self._context.now_us + self._back_off_us(entry)

    def on_broken(self, sender: MemberId, message: Broken) -> None:
        """Note that a participant cannot end the attempt."""
        entry = self._voting.open
        if entry is None or message.ballot != entry.proposer.ballot:
            return
        if sender not in entry.reported:
            entry.reported[sender] = message.reason
            entry.retry_us = self._context.now_us + self._back_off_us(entry)

    def on_result(self, event: AttemptFinished) -> None:
        """Propose the entry of an attempt that this node, its root, has finished."""
        entry = self._voting.open
        if entry is None or event.index != entry.index or event.ballot != entry.proposer.ballot:
            return
        if entry.proposer.phase is not Phase.OPEN or entry.attempt is None:
            return
        if self._context.is_blind:
            return  # it would name a state that this node does not know; the job ends anyhow
        job = self._ledger().running_job
        assert job is not None, "an attempt belongs to a running job"
        if not math.isfinite(event.outcome.loss_sum):
            self._propose_failure(entry, job)
            return
        self._propose(entry, self._round_entry(entry, event, job))

    def on_ack(self, sender: MemberId, message: Ack) -> None:
        """Count an acknowledgement; commit when they are a quorum."""
        entry = self._voting.open
        if entry is None or entry.proposer.value is None:
            return
        if message.entry_id != entry.proposer.value.id():
            return
        if not entry.proposer.on_ack(sender, message.ballot):
            return
        value = entry.proposer.value
        voters = self._ledger().config.ids
        newcomers = tuple(m for m in value.config.ids if m not in voters)
        self._context.out.send_all((*voters, *newcomers), Commit(value))

    def _open_ballot(self, entry: OpenEntry) -> None:
        """Start the first ballot of an entry if there is anything to decide."""
        if self._context.now_us < entry.retry_us:
            return
        if not self._has_work():
            return
        if entry.proposer.can_lead():
            if entry.acceptor.promised is None:
                entry.proposer.start_leading()
                self._run_plan(entry)
        elif self._context.hears_quorum:
            self._start_higher(entry)

    def _has_work(self) -> bool:
        return self._wanted_change() is not None or self._may_run() or self._news_is_due()

    def _run_plan(self, entry: OpenEntry) -> None:
        """Carry out this ballot's one plan."""
        change = self._wanted_change()
        if change is not None:
            self._propose(entry, self._config_entry(entry, change))
        elif self._may_run():
            self._start_attempt(entry)
        else:
            self._measured_us = self._context.now_us
            self._propose(entry, self._config_entry(entry, _Change((), (), None)))

    def _is_stuck(self, entry: OpenEntry) -> bool:
        """Tell whether the attempt in progress cannot end, as far as known here."""
        attempt = entry.attempt
        if attempt is None:
            return False
        if attempt.broken or entry.reported or self._desk.has_failed():
            return True
        return not self._all_heard(attempt.participants) and self._wanted_change() is not None

    def _replace_attempt(self, entry: OpenEntry) -> None:
        """Start a higher ballot: for the change that is wanted, or to try again."""
        if self._context.now_us < entry.retry_us or not self._context.hears_quorum:
            return
        if self._wanted_change() is None and not self._may_run():
            return
        self._start_higher(entry)

    def _start_higher(self, entry: OpenEntry) -> None:
        ballot = entry.proposer.start_higher(entry.acceptor.promised)
        entry.reported.clear()
        entry.retries += 1
        self._context.out.note(
            Severity.INFO, "ballot started", entry=entry.index, ballot=ballot.number
        )
        prepare = Prepare(entry.index, entry.previous, ballot)
        self._context.out.send_all(self._ledger().config.ids, prepare)

    def _start_attempt(self, entry: OpenEntry) -> None:
        job = self._ledger().running_job
        ballot = entry.proposer.ballot
        assert job is not None, "an attempt belongs to a running job"
        assert ballot is not None, "an attempt is made in a ballot"
        kind = EntryKind.EVALUATION if job.evaluation_due else EntryKind.ROUND
        entry.resend_us = self._context.now_us + RESEND_TICKS * TICK_US
        start = self._start_message(entry, ballot, kind)
        self._context.out.send_all(start.participants, start)

    def _start_message(self, entry: OpenEntry, ballot: Ballot, kind: EntryKind) -> Start:
        ledger = self._ledger()
        job = ledger.running_job
        assert job is not None, "an attempt belongs to a running job"
        participants = ledger.config.ids
        plan = plan_attempt(ledger.view, job, kind, participants, self._context.me.node)
        return Start(
            index=entry.index,
            previous=entry.previous,
            ballot=ballot,
            kind=kind,
            participants=participants,
            view=plan.view_digest,
            plan=plan.digest(),
        )

    def _propose(self, entry: OpenEntry, value: Entry) -> None:
        ballot = entry.proposer.ballot
        assert ballot is not None, "a value is proposed in a ballot"
        entry.proposer.propose(value)
        entry.resend_us = self._context.now_us + RESEND_TICKS * TICK_US
        accept = Accept(ballot, value, entry.proposer.holder)
        self._context.out.send_all(self._ledger().config.ids, accept)

    def _propose_failure(self, entry: OpenEntry, job: JobState) -> None:
        """End a job whose loss is not a number any more: applying it would poison the state."""
        reason = (
            f"the loss of round {job.next_round} is not finite; the state before it is kept. "
            "Try a smaller learning rate."
        )
        change = _Change((), (), job.ended(JobPhase.FAILED, reason))
        self._propose(entry, self._config_entry(entry, change))

    def _round_entry(self, entry: OpenEntry, event: AttemptFinished, job: JobState) -> Entry:
        attempt = entry.attempt
        assert attempt is not None, "a round is proposed by the root of its attempt"
        self._context.links.merge(event.links)
        if attempt.kind is EntryKind.ROUND:
            after = job.after_round(event.outcome.loss_sum / event.outcome.samples)
            reports = tuple(sorted(event.reports))
        else:
            after = job.after_evaluation(event.outcome.correct / event.outcome.samples)
            # An evaluation's units are not a round's: they must not move the shares.
            reports = ()
        config = self._ledger().config
        delta = ViewDelta(self._link_news(config), reports)
        outcome = RoundOutcome(event.outcome.samples, event.outcome.loss_sum, event.outcome.correct)
        return self._entry(entry, attempt.kind, config, after, delta, event.digest, outcome)

    def _config_entry(self, entry: OpenEntry, change: _Change) -> Entry:
        ledger = self._ledger()
        config = ledger.config.changed(removed=change.removed, joined=change.joined)
        job = ledger.job if change.job is None else change.job
        delta = ViewDelta(self._link_news(config))
        return self._entry(entry, EntryKind.CONFIG, config, job, delta, NO_CONTENT, None)

    def _entry(
        self,
        entry: OpenEntry,
        kind: EntryKind,
        config: Config,
        job: JobState | None,
        delta: ViewDelta,
        result: bytes,
        outcome: RoundOutcome | None,
    ) -> Entry:
        ledger = self._ledger()
        state = self._context.state
        assert state is not None or self._context.is_blind, "an entry is proposed on a known state"
        return Entry(
            lineage=self._context.lineage,
            index=EntryIndex(entry.index),
            kind=kind,
            previous=entry.previous,
            state=NO_STATE if state is None else state,
            result=type(NO_CONTENT)(result),
            outcome=outcome,
            config=config,
            leader=self._next_leader(ledger, kind, config, delta),
            job=job,
            delta=delta,
        )

    def _next_leader(
        self, ledger: Ledger, kind: EntryKind, config: Config, delta: ViewDelta
    ) -> NodeId:
        """Name the preferred root if it hears a quorum, else this node, else any that does.

        Only who is a member before and after the entry: a newcomer may be gone before it is in.
        After a round with a change to come this node goes on: another one may not know of it yet,
        and would start a round instead.
        """
        me = self._context.me.node
        stays = kind is not EntryKind.CONFIG and self._wanted_change() is not None
        preferred = me if stays else preferred_root(ledger.view_after(config, delta))
        for node in (preferred, me, *config.nodes):
            member = config.find(node)
            if member is None or member.id not in ledger.config:
                continue
            if not self._context.peers.is_reachable(member.id):
                continue
            peer = self._context.peers.get(member.id)
            heartbeat = None if peer is None else peer.heartbeat
            if node == me or (
                heartbeat is not None and heartbeat.hears_quorum and not heartbeat.leaving
            ):
                return node
        return config.nodes[0]

    def _wanted_change(self) -> _Change | None:
        """Return what the next entry should change, None if nothing must."""
        removed = (*self._leavers(), *self._evictions.due())
        job = self._desk.wanted_job()
        # Who is admitted with the start of a job would not be ready for its first round.
        busy = job is not None or self._ledger().running_job is not None
        joined = () if busy else self._joiners(removed)
        if not removed and not joined and job is None:
            return None
        return _Change(removed, joined, job)

    def _leavers(self) -> tuple[MemberId, ...]:
        """Return the members that asked to leave; never all, for a config is not empty.

        One that said so and then went, for nobody agreed in time, is removed as well.
        """
        config = self._ledger().config
        leaving = [m for m in config.ids if m != self._context.id and self._is_leaving(m)]
        if self._context.leaving and len(leaving) + 1 < len(config.members):
            leaving.append(self._context.id)
        return tuple(leaving)

    def _is_leaving(self, member: MemberId) -> bool:
        """Tell whether a member asked to leave, or went after asking, as told here or elsewhere."""
        peers, roster = self._context.peers, self._context.roster
        peer = peers.get(member)
        if peer is not None and peer.heartbeat is not None and peer.heartbeat.leaving:
            return True
        rumour = roster.rumour_of(member.node)
        return (
            rumour is not None
            and rumour.member.id == member
            and rumour.liveness is Liveness.LEFT
            and not peers.is_reachable(member)
        )

    def _joiners(self, removed: tuple[MemberId, ...]) -> tuple[Member, ...]:
        """Return the newcomers that are ready, no more than the members that stay and live."""
        ledger = self._ledger()
        ready = [
            peer.member
            for peer in self._context.peers.all()
            if peer.heartbeat is not None
            and peer.heartbeat.wants_in
            and peer.member.id not in ledger.config
            and self._context.peers.is_reachable(peer.member.id)
            and peer.heartbeat.entry_id
            and peer.committed + JOINER_LAG >= ledger.index
        ]
        kept = [
            m for m in ledger.config.ids if m not in removed and self._context.peers.is_reachable(m)
        ]
        free = MEMBERS_MAX - len(ledger.config.members)
        return tuple(ready[: max(0, min(len(kept), free))])

    def _may_run(self) -> bool:
        """Tell whether the job's next round may start: everybody takes part, everybody is heard."""
        ledger = self._ledger()
        job = ledger.running_job
        if job is None or self._desk.has_failed() or self._context.is_blind:
            return False
        return self._all_heard(ledger.config.ids)

    def _all_heard(self, members: tuple[MemberId, ...]) -> bool:
        return all(self._context.peers.is_reachable(member) for member in members)

    def _news_is_due(self) -> bool:
        ledger = self._ledger()
        if ledger.running_job is not None:
            return False
        if self._context.now_us - self._measured_us < MEASUREMENTS_EVERY_US:
            return False
        return bool(self._link_news(ledger.config))

    def _link_news(self, config: Config) -> tuple[LinkCell, ...]:
        """Return the measurements between members that the view does not have yet."""
        return self._context.links.newer_than(self._ledger().view.links, config.nodes)

    def _back_off_us(self, entry: OpenEntry) -> int:
        ticks = min(RETRY_TICKS_MAX, 1 << min(entry.retries, 8))
        return ticks * TICK_US + self._context.rng.randrange(TICK_US)

    def _ledger(self) -> Ledger:
        assert self._context.ledger is not None, "a leader knows the log"
        return self._context.ledger
