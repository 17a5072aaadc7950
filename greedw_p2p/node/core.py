"""The node: one state machine that ties membership, log, plans and jobs together.

Events in, effects out. A handler never waits, logs, or reads a clock: the shell and the simulator
run this very code. Work is done in two steps: an event changes what is known, and after it the
leader's half is asked once what can be done now.
"""

import hashlib
import random
from collections import deque

from greedw_p2p.config import Config, Member
from greedw_p2p.ids import EntryId, EntryIndex, LineageId, MemberId
from greedw_p2p.jobs.spec import JobPhase
from greedw_p2p.limits import HELD_MESSAGES_MAX, MEMBERS_MAX
from greedw_p2p.links.table import LinkTable
from greedw_p2p.log.entry import Entry
from greedw_p2p.log.ledger import JOBS_KEPT, Ledger
from greedw_p2p.membership.peers import Peers
from greedw_p2p.membership.roster import Roster
from greedw_p2p.membership.rumour import Liveness
from greedw_p2p.node import events
from greedw_p2p.node.boot import Boot
from greedw_p2p.node.contacts import Contacts
from greedw_p2p.node.context import Context, Durable
from greedw_p2p.node.departure import Departure, phase_of
from greedw_p2p.node.desk import JobDesk
from greedw_p2p.node.effects import Effect, Severity, Stopped
from greedw_p2p.node.evictions import Evictions
from greedw_p2p.node.leading import Leading
from greedw_p2p.node.outbox import Outbox
from greedw_p2p.node.report import pause_reason, report_status, state_digests
from greedw_p2p.node.status import NodeStatus
from greedw_p2p.node.voting import Voting
from greedw_p2p.view import View
from greedw_p2p.wire import messages as m

InstanceMessage = m.Prepare | m.Promise | m.Start | m.Accept | m.Ack | m.Nack | m.Broken | m.Commit


class Node:
    """A greedw node without I/O."""

    def __init__(self, me: Member, boot: Boot, *, rng: random.Random, now_us: int) -> None:
        lineage, config = _first_config(me, boot)
        ledger = None if config is None else Ledger.founded(lineage, config)
        on_disk = boot.config if ledger is None else None
        self._context = Context(
            me=me,
            boot=boot,
            rng=rng,
            out=Outbox(me.id),
            peers=Peers(me.node),
            roster=Roster(me),
            links=LinkTable(),
            lineage=lineage,
            ledger=ledger,
            durable=Durable(boot.committed_index, on_disk),
            now_us=now_us,
        )
        self._desk = JobDesk(self._context)
        self._voting = Voting(self._context, self._committed)
        self._evictions = Evictions(self._context)
        self._leading = Leading(self._context, self._voting, self._desk, self._evictions)
        self._contacts = Contacts(self._context)
        self._departure = Departure(self._context)
        self._held_up = False
        self._held: dict[MemberId, deque[InstanceMessage]] = {}
        if ledger is not None:
            self._context.persist(ledger.index, ledger.config, None)

    @property
    def lineage(self) -> LineageId:
        """The lineage that this node's messages name."""
        return self._context.lineage

    def handle(self, event: events.Event, now_us: int) -> list[Effect]:
        """Apply one event and return what the shell must do, in order."""
        self._context.now_us = max(now_us, self._context.now_us)
        self._dispatch(event)
        self._settle()
        return self._context.out.take()

    def status(self, now_us: int) -> NodeStatus:
        """Return what this node tells of itself."""
        self._context.now_us = max(now_us, self._context.now_us)
        return report_status(self._context, self._voting.open, self._desk)

    def _settle(self) -> None:
        """Handle what the node sent to itself, and let the leader's half act, until all is done."""
        while True:
            while (message := self._context.out.next_to_self()) is not None:
                self._on_message(self._context.id, message)
            self._leading.advance()
            if not self._context.out.has_to_self:
                return

    def _dispatch(self, event: events.Event) -> None:
        match event:
            case events.Ticked(lag_us):
                self._tick(lag_us)
            case events.PeerConnected(member):
                self._connected(member)
            case events.PeerDisconnected(peer, reason):
                self._disconnected(peer, reason)
            case events.DialFailed(node):
                self._contacts.dial_failed(node)
            case events.MessageReceived(sender, lineage, message):
                self._received(sender, lineage, message)
            case events.AttemptFinished():
                self._voting.on_finished(event)
                self._leading.on_result(event)
            case events.AttemptBroken():
                self._voting.on_broken(event)
            case events.JobLoaded():
                self._desk.loaded(event)
            case events.JobRefused():
                self._desk.refused(event)
            case events.WorkerFailed():
                self._desk.worker_failed(event)
                self._voting.on_worker_failed()
            case events.StateApplied():
                self._voting.on_applied(event)
            case events.SubmitJob():
                self._desk.submit(event)
            case events.StopJob():
                self._desk.stop(event)
            case events.EvictMember():
                self._evictions.request(event)
            case events.Leave(request):
                self._departure.begin(request)
                # Before this node can be gone: the others tell a leave from a loss by it.
                self._contacts.send_heartbeats()
                self._departure.tick()

    def _tick(self, lag_us: int) -> None:
        context = self._context
        for peer in context.peers.tick(context.now_us, lag_us):
            context.roster.declare(peer.member, Liveness.SUSPECT)
            self._note_loss(peer.member, "silent")
        attempt = None if self._voting.open is None else self._voting.open.attempt
        self._contacts.tick(quiet=attempt is None)
        self._desk.tick(leads=self._leading.leads)
        self._voting.tick()
        self._evictions.tick()
        self._leading.tick()
        self._departure.tick()
        self._keep_digests()
        self._note_pause()

    def _note_pause(self) -> None:
        """Log once that a job is held up, and once that it goes on."""
        context = self._context
        job = None if context.ledger is None else context.ledger.running_job
        reason = pause_reason(context, self._voting.open) if job and context.is_member else ""
        held_up = bool(reason)
        if held_up == self._held_up or job is None:
            self._held_up = held_up
            return
        self._held_up = held_up
        if held_up:
            context.out.note(Severity.WARNING, "job paused", job=job.spec.id, reason=reason)
        else:
            context.out.note(Severity.INFO, "job goes on", job=job.spec.id)

    def _keep_digests(self) -> None:
        """Remember the replicas' digests of a job that has ended: another one may start."""
        ledger = self._context.ledger
        if ledger is None or ledger.job is None or ledger.running_job is not None:
            return
        kept = self._context.final_digests
        kept[ledger.job.spec.id] = state_digests(self._context)
        if len(kept) > JOBS_KEPT:
            del kept[next(iter(kept))]

    def _connected(self, member: Member) -> None:
        context = self._context
        if not context.peers.connected(member, context.now_us):
            return
        self._contacts.connected(member)
        self._leading.resend_to(member.id)
        context.out.note(
            Severity.INFO,
            "peer connected",
            peer=context.name_of(member.node),
            address=str(member.address),
        )

    def _disconnected(self, peer: MemberId, reason: str) -> None:
        known = self._context.peers.get(peer)
        if known is not None and self._context.peers.disconnected(peer, reason):
            self._held.pop(peer, None)
            self._contacts.disconnected(peer)
            if known.has_left:
                name = self._context.name_of(peer.node)
                self._context.roster.declare(known.member, Liveness.LEFT)
                self._context.out.note(Severity.INFO, "peer left", peer=name)
                return
            self._context.roster.declare(known.member, Liveness.SUSPECT)
            self._note_loss(known.member, reason)

    def _note_loss(self, member: Member, reason: str) -> None:
        """Log the loss of a peer with the link and the phase, loudly if it is a member."""
        context = self._context
        name = context.name_of(member.node)
        matters = context.config is not None and member.id in context.config
        context.out.note(
            Severity.WARNING if matters else Severity.INFO,
            "peer lost",
            peer=name,
            link=f"{context.my_name} - {name}",
            phase=phase_of(self._voting.open, context.ledger),
            reason=reason,
        )

    def _received(self, sender: MemberId, lineage: LineageId, message: m.ControlMessage) -> None:
        context = self._context
        if context.peers.get(sender) is None:
            return
        if lineage != context.lineage:
            self._other_lineage(sender, lineage, message)
            return
        self._on_message(sender, message)

    def _other_lineage(
        self, sender: MemberId, lineage: LineageId, message: m.ControlMessage
    ) -> None:
        """Answer another history with ours; a node that is no member takes the one it is told."""
        context = self._context
        if isinstance(message, m.NewLineage):
            if message.old == context.lineage and not context.is_member:
                context.lineage = message.new
                context.ledger = None
                self._voting.open = None
                context.out.note(Severity.INFO, "lineage changed", lineage=message.new)
        elif context.is_member and context.config is not None:
            answer = m.NewLineage(lineage, context.lineage, context.config)
            context.out.send(sender, answer)

    def _on_message(self, sender: MemberId, message: m.ControlMessage) -> None:
        context = self._context
        heartbeat = message if isinstance(message, m.Heartbeat) else None
        context.peers.heard(sender, heartbeat, context.now_us)
        match message:
            case m.Heartbeat():
                self._contacts.on_heartbeat(sender, message)
                self._compare_state(sender, message)
            case m.Gossip():
                self._contacts.on_gossip(sender, message)
            case m.ProbeChunk():
                self._contacts.on_probe(sender, message)
            case m.CatchUp():
                self._serve_entries(sender, message)
            case m.Entries():
                self._take_entries(message)
            case m.NewLineage():
                pass
            case m.Propose():
                self._desk.on_propose(sender, message, leads=self._leading.leads)
            case m.Evict():
                self._evictions.on_evict(message)
            case m.Declined():
                self._desk.on_declined(message)
            case m.PrepareJob():
                self._desk.on_prepare_job(sender, message)
            case m.JobPrepared():
                self._desk.on_prepared(sender, message)
            case _:
                self._gate(sender, message)

    def _gate(self, sender: MemberId, message: InstanceMessage) -> None:
        """Let a message of the open entry in; hold, answer or refuse any other."""
        ledger = self._context.ledger
        if ledger is None:
            return
        index, previous = _instance_of(message)
        if index <= ledger.index:
            if isinstance(message, m.Prepare | m.Start | m.Accept):
                self._serve_entries(sender, m.CatchUp(EntryIndex(index - 1), fresh=False))
            return
        if index == ledger.index + 1:
            if previous != ledger.entry_id:
                self._impossible(sender, index)
                return
            self._instance(sender, message)
            return
        if index == ledger.index + 2 and self._voting.implied_commit(previous):
            self._gate(sender, message)
            return
        held = self._held.setdefault(sender, deque(maxlen=HELD_MESSAGES_MAX))
        held.append(message)
        self._context.out.send(sender, m.CatchUp(ledger.index, fresh=False))

    def _instance(self, sender: MemberId, message: InstanceMessage) -> None:
        match message:
            case m.Prepare():
                self._voting.on_prepare(sender, message)
            case m.Start():
                self._voting.on_start(sender, message)
            case m.Accept():
                self._voting.on_accept(sender, message)
            case m.Commit(entry):
                self._voting.on_commit(entry)
            case m.Promise():
                self._leading.on_promise(sender, message)
            case m.Ack():
                self._leading.on_ack(sender, message)
            case m.Nack():
                self._leading.on_nack(message)
            case m.Broken():
                self._leading.on_broken(sender, message)

    def _impossible(self, sender: MemberId, index: int) -> None:
        name = self._context.name_of(sender.node)
        reason = f"{name} speaks of another history before entry {index}: refusing to go on"
        self._context.out.note(Severity.ERROR, "history differs", peer=name, entry=index)
        self._context.out.emit(Stopped(reason, failed=True))

    def _serve_entries(self, sender: MemberId, message: m.CatchUp) -> None:
        ledger = self._context.ledger
        if ledger is None:
            return
        entries = () if message.fresh else ledger.after(message.committed)
        if entries:
            self._context.out.send(sender, m.Entries(entries, None))
        elif message.fresh or message.committed < ledger.index:
            self._context.out.send(sender, m.Entries((ledger.entry,), ledger.view))

    def _take_entries(self, message: m.Entries) -> None:
        """Catch up: entry by entry where possible, else by the newest one and its view."""
        context = self._context
        if message.from_view is not None and len(message.entries) == 1:
            self._jump(message.entries[0], message.from_view)
            return
        if message.entries:
            self._voting.on_later(message.entries[-1])
        for entry in message.entries:
            ledger = context.ledger
            if ledger is not None and ledger.is_next(entry.index, entry.previous):
                self._voting.on_commit(entry)

    def _jump(self, entry: Entry, view: View) -> None:
        """Take a later entry over; a member does so only where it owes no state to a job."""
        context = self._context
        if entry.lineage != context.lineage:
            return
        idle = entry.job is None or entry.job.phase is not JobPhase.RUNNING
        if context.ledger is None or (
            entry.index > context.ledger.index and (idle or not context.is_member)
        ):
            self._voting.adopt(entry, view)

    def _committed(self, entry: Entry) -> None:
        """Follow up on a commit: members that left, requests that are done, what was held."""
        context = self._context
        self._desk.committed(entry.job)
        self._evictions.committed(entry)
        for peer in context.peers.all():
            leaving = peer.heartbeat is not None and peer.heartbeat.leaving
            if leaving and entry.config.find(peer.member.node) is None:
                context.roster.declare(peer.member, Liveness.LEFT)
        self._departure.committed(entry)
        self._replay_held()

    def _replay_held(self) -> None:
        held, self._held = self._held, {}
        for sender in sorted(held):
            for message in held[sender]:
                self._gate(sender, message)

    def _compare_state(self, sender: MemberId, heartbeat: m.Heartbeat) -> None:
        """Raise the alarm if a replica at the same entry has another state."""
        context = self._context
        ledger = context.ledger
        if ledger is None or context.state is None or ledger.entry_id != heartbeat.entry_id:
            return
        if not heartbeat.state or not context.shown_state or ledger.running_job is None:
            return
        if heartbeat.state != context.shown_state:
            name = context.name_of(sender.node)
            context.out.note(
                Severity.ERROR,
                "replicas differ",
                peer=name,
                entry=ledger.index,
                mine=context.shown_state.hex(),
                theirs=heartbeat.state.hex(),
            )


def _instance_of(message: InstanceMessage) -> tuple[EntryIndex, EntryId]:
    match message:
        case m.Accept(_, entry) | m.Commit(entry):
            return entry.index, entry.previous
        case _:
            return message.index, message.previous


def _first_config(me: Member, boot: Boot) -> tuple[LineageId, Config | None]:
    """Return the lineage, and the config if this node starts as its only member.

    A restarted process is a new life and no member of the config on disk. Where that config has no
    other node, this one has proved its old life dead by speaking, so it is the whole electorate: it
    goes on alone, in a lineage that names both lives.
    """
    config = boot.config
    if config is None or config.nodes != (me.node,):
        return boot.lineage, None
    if me.id in config:
        return boot.lineage, config
    seed = f"{boot.lineage}/{me.node}/{me.incarnation}".encode()
    lineage = LineageId(hashlib.blake2b(seed, digest_size=16).hexdigest())
    return lineage, Config((me,))


assert HELD_MESSAGES_MAX * MEMBERS_MAX < 10_000, "held messages are bounded in all"
