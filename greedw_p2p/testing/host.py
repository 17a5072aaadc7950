"""A simulated host: a real node, its disk, its worker, and its end of the data plane."""

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from greedw_p2p.config import Address, Config, Member
from greedw_p2p.errors import PeerError
from greedw_p2p.ids import (
    Ballot,
    EntryId,
    EntryIndex,
    Incarnation,
    JobId,
    LineageId,
    MemberId,
    NodeId,
    StateDigest,
)
from greedw_p2p.jobs.spec import JobSpec
from greedw_p2p.log.entry import EntryKind, RoundOutcome
from greedw_p2p.node import effects, events
from greedw_p2p.node.boot import Boot
from greedw_p2p.node.core import Node
from greedw_p2p.reduction import attempt as reduction
from greedw_p2p.testing.network import Agenda
from greedw_p2p.testing.worker import BulkItem, SimAttempt, SimWorker, digest_of
from greedw_p2p.view import RoundReport
from greedw_p2p.wire.messages import Contribution

LOAD_US = 20_000
APPLY_US = 300
FIXED_US = 500
FETCH_PHASE = "fetching the result"


class Wires(Protocol):
    """What a host asks of the cluster around it."""

    def send_control(self, host: "SimHost", effect: effects.Send) -> None:
        """Send a message on the control connection to a member."""
        ...

    def send_bulk(
        self, host: "SimHost", to: NodeId, attempt: tuple[EntryIndex, Ballot], item: BulkItem
    ) -> None:
        """Send a chunk or a summary on a tree edge."""
        ...

    def dial(self, host: "SimHost", effect: effects.Dial) -> None:
        """Try to connect two hosts."""
        ...

    def fetch(self, host: "SimHost", effect: effects.FetchResult) -> None:
        """Bring a result's bytes from the host that has them."""
        ...

    def unit_us_of(self, node: NodeId) -> int:
        """Return how long a host computes at a sample, for the report that rides up from it."""
        ...

    def ended(self, host: "SimHost") -> None:
        """Close the connections of a host that has stopped, after what was sent on them."""
        ...

    def observe(self, host: "SimHost", effect: effects.Effect) -> None:
        """Show an effect to the oracle and the trace."""
        ...


@dataclass(slots=True)
class Disk:
    """What survives the process."""

    incarnation: int = 0
    lineage: LineageId | None = None
    committed_index: EntryIndex = field(default=EntryIndex(0))
    config: Config | None = None


class SimHost:
    """One host: ``load_us`` is how long it loads a job, ``unit_us`` how long a sample takes it."""

    def __init__(
        self, node_id: NodeId, name: str, address: Address, agenda: Agenda, wires: Wires
    ) -> None:
        self.node_id = node_id
        self.name = name
        self.address = address
        self.unit_us = 20
        self.load_us = LOAD_US
        self.disk = Disk()
        self.node: Node | None = None
        self.workers: dict[JobId, SimWorker] = {}
        self.dead_jobs: set[JobId] = set()
        self.refusal = ""
        self.paused_until_us = 0
        self.notes: list[effects.Note] = []
        self.replies: list[effects.Reply] = []
        self.stopped: effects.Stopped | None = None
        self._agenda = agenda
        self._wires = wires
        self._life = 0
        self._waiting: deque[events.Event] = deque()
        self._attempt: SimAttempt | None = None
        self._early: deque[tuple[NodeId, tuple[EntryIndex, Ballot], BulkItem]] = deque(maxlen=256)

    @property
    def is_up(self) -> bool:
        """Tell whether the process runs."""
        return self.node is not None

    @property
    def member(self) -> Member:
        """This life, as others see it."""
        return Member(self.node_id, Incarnation(self.disk.incarnation), self.name, self.address)

    def start(self, boot: Boot, seed: int) -> None:
        """Start the process as a new life; its state is what ``boot`` says."""
        self.stopped = None
        self.node = Node(
            self.member,
            boot,
            rng=random.Random(seed),  # noqa: S311 - seeded, not secret
            now_us=self._agenda.now_us,
        )
        self._life += 1
        self._forget()

    def crash(self) -> None:
        """End the process at once; only the disk survives."""
        self.node = None
        self._life += 1
        self._forget()

    def deliver(self, event: events.Event) -> None:
        """Hand the node an event, now or when it is no longer paused."""
        if self.node is None:
            return
        if self._waiting or self._agenda.now_us < self.paused_until_us:
            self._waiting.append(event)
            if len(self._waiting) == 1:
                self._resume_later()
            return
        self._handle(event)

    def _resume_later(self) -> None:
        life = self._life
        self._agenda.at(
            self.paused_until_us, lambda: self._resume() if life == self._life else None
        )

    def _resume(self) -> None:
        """Handle in order what came during a pause."""
        while self._waiting:
            if self._agenda.now_us < self.paused_until_us:
                self._resume_later()
                return
            self._handle(self._waiting.popleft())

    def _handle(self, event: events.Event) -> None:
        if self.node is None:
            return
        for effect in self.node.handle(event, self._agenda.now_us):
            self._wires.observe(self, effect)
            self._perform(effect)
            if not self.is_up:
                return

    def load_here(self, spec: JobSpec, state: StateDigest) -> None:
        """Load a job before it is submitted here, as a user's command does."""
        self.workers[spec.id] = SimWorker(spec, state)

    def kill_worker(self, job: JobId, reason: str) -> None:
        """End a job's worker at once; what it was computing never comes."""
        del self.workers[job]
        self.dead_jobs.add(job)
        self.deliver(events.WorkerFailed(job, reason))

    def bulk_arrived(
        self, sender: NodeId, attempt: tuple[EntryIndex, Ballot], item: BulkItem
    ) -> None:
        """Take what a tree neighbour sent; keep it if the attempt has not begun here."""
        running = self._attempt
        if running is None or running.key != attempt:
            self._early.append((sender, attempt, item))
            return
        running.inboxes.setdefault(sender, deque()).append(item)
        self._drain(running, sender)

    def serve(self, digest: bytes) -> tuple[int, ...] | None:
        """Return a result that this host still has."""
        found = (worker.results.get(digest) for worker in self.workers.values())
        return next((values for values in found if values is not None), None)

    def fetched(self, effect: effects.FetchResult, values: tuple[int, ...]) -> None:
        """Take a result that was fetched."""
        for worker in self.workers.values():
            worker.results[effect.digest] = values
        outcome = RoundOutcome(0, 0.0, 0)
        self.deliver(events.AttemptFinished(effect.index, effect.ballot, effect.digest, outcome))

    def fetch_failed(self, effect: effects.FetchResult, reason: str) -> None:
        """Tell the node that a result did not come."""
        where = (effect.index, effect.ballot, effect.holder)
        self._later(0, events.AttemptBroken(*where, FETCH_PHASE, reason))

    def bulk_lost(self, peer: NodeId) -> None:
        """Break the running attempt if it uses the edge to ``peer``."""
        attempt = self._attempt
        if attempt is None or peer not in (attempt.parent, *attempt.children):
            return
        self._break(attempt, peer, "connection reset by peer")

    def _break(self, attempt: SimAttempt, peer: NodeId, reason: str) -> None:
        self._attempt = None
        order = attempt.order
        phase = str(attempt.machine.waiting().phase)
        self._later(0, events.AttemptBroken(order.index, order.ballot, peer, phase, reason))

    def _forget(self) -> None:
        self.workers.clear()
        self.dead_jobs.clear()
        self._attempt = None
        self._waiting.clear()
        self._early.clear()

    def _later(self, delay_us: int, event: events.Event) -> None:
        """Deliver an event of this life's own making."""
        life = self._life
        self._agenda.after(delay_us, lambda: self.deliver(event) if life == self._life else None)

    def _perform(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Send():
                self._wires.send_control(self, effect)
            case effects.Dial():
                self._wires.dial(self, effect)
            case effects.Persist(lineage, index, config, _):
                self.disk.lineage, self.disk.committed_index = lineage, index
                self.disk.config = config
            case effects.LoadJob(spec, state, _):
                self._load(spec, state)
            case effects.UnloadJob(job, _):
                self.workers.pop(job, None)
            case effects.BeginAttempt():
                self._begin(effect)
            case effects.CancelAttempt():
                self._attempt = None
            case effects.FetchResult():
                self._wires.fetch(self, effect)
            case effects.ApplyResult(entry_id, digest, _, spec, _):
                self._apply(spec.id, entry_id, digest)
            case effects.FlipState(entry_id):
                self._flip(entry_id)
            case effects.Reply():
                self.replies.append(effect)
            case effects.Note():
                self.notes.append(effect)
            case effects.Stopped():
                self.stopped = effect
                self.crash()
                self._wires.ended(self)
            case effects.Committed():
                pass

    def _load(self, spec: JobSpec, state: StateDigest) -> None:
        if self.refusal:
            self._later(self.load_us, events.JobRefused(spec.id, self.refusal))
            return
        if spec.id not in self.workers:
            self.workers[spec.id] = SimWorker(spec, state)
            self.dead_jobs.discard(spec.id)
        self._later(self.load_us, events.JobLoaded(spec, state))

    def _apply(self, job: JobId, entry_id: EntryId, digest: bytes) -> None:
        if job in self.dead_jobs:
            return
        worker = self.workers.get(job)
        assert worker is not None, f"{self.name} applies a result of {job}, which it has not loaded"
        state = worker.apply(entry_id, worker.results[digest])

        def applied() -> None:
            if self.workers.get(job) is worker:
                self.deliver(events.StateApplied(entry_id, state))

        self._agenda.after(APPLY_US, applied)

    def _flip(self, entry_id: EntryId) -> None:
        computed = [w for w in self.workers.values() if w.second_of == entry_id]
        assert computed or self.dead_jobs, f"{self.name} flips to a state it has not computed"
        for worker in computed:
            worker.flip(entry_id)

    def _begin(self, order: effects.BeginAttempt) -> None:
        job = order.spec.id
        lives = job in self.workers or job in self.dead_jobs
        assert lives, f"{self.name} takes part in a round of {job}, which it has not loaded"
        attempt = self._attempt = SimAttempt.begun(self.node_id, order)
        _, units = order.plan.units_of(self.node_id)
        life = self._life

        def computed() -> None:
            if life == self._life and self._attempt is attempt and job in self.workers:
                self._computed(attempt)

        self._agenda.after(FIXED_US + units * self.unit_us, computed)
        early, self._early = list(self._early), deque(maxlen=256)
        for sender, key, item in early:
            self.bulk_arrived(sender, key, item)

    def _computed(self, attempt: SimAttempt) -> None:
        if self._agenda.now_us < self.paused_until_us:
            self._agenda.at(self.paused_until_us, lambda: self._computed(attempt))
            return
        attempt.compute(self.node_id)
        self._advance(attempt, reduction.OwnChunksReady(len(attempt.own)))
        self._advance(attempt, reduction.OwnFinished(attempt.own_part(self.node_id)))

    def _drain(self, attempt: SimAttempt, sender: NodeId) -> None:
        """Hand the machine what a neighbour sent, as far as it can take it."""
        inbox = attempt.inboxes.get(sender, deque())
        while inbox and self._attempt is attempt:
            item = inbox[0]
            if sender == attempt.parent:
                inbox.popleft()
                self._from_parent(attempt, item)
                continue
            child = attempt.children.index(sender)
            if isinstance(item, int) and not attempt.machine.can_take(child):
                return
            inbox.popleft()
            self._from_child(attempt, child, item)

    def _from_parent(self, attempt: SimAttempt, item: BulkItem) -> None:
        if isinstance(item, int):
            attempt.result[attempt.machine.next_result] = item
            self._advance(attempt, reduction.ResultChunkArrived())
        elif isinstance(item, reduction.Figures):
            self._advance(attempt, reduction.ResultFinished(item))

    def _from_child(self, attempt: SimAttempt, child: int, item: BulkItem) -> None:
        if isinstance(item, int):
            attempt.slots[child].append(item)
            self._advance(attempt, reduction.ChildChunkArrived(child))
        elif isinstance(item, reduction.Part):
            self._advance(attempt, reduction.ChildFinished(child, item))

    def _advance(self, attempt: SimAttempt, event: reduction.Event) -> None:
        try:
            actions = attempt.machine.handle(event)
        except PeerError as error:
            self._break(attempt, self.node_id, str(error))
            return
        for action in actions:
            self._act(attempt, action)

    def _act(self, attempt: SimAttempt, action: reduction.Action) -> None:
        match action:
            case reduction.Combine(chunk):
                attempt.combine(chunk)
            case reduction.SendUp(chunk):
                values = attempt.result if attempt.children else attempt.own
                self._send_up(attempt, values[chunk])
            case reduction.SendDown(chunk):
                self._send_down(attempt, attempt.result[chunk])
            case reduction.ResumeChild(child):
                self._drain(attempt, attempt.children[child])
            case reduction.CloseUp(part):
                self._send_up(attempt, part)
            case reduction.CloseDown(figures):
                self._send_down(attempt, figures)
            case reduction.Finish(figures, part):
                self._finish(attempt, figures, part)

    def _send_up(self, attempt: SimAttempt, item: BulkItem) -> None:
        assert attempt.parent is not None, "the root sends nothing up"
        self._wires.send_bulk(self, attempt.parent, attempt.key, item)

    def _send_down(self, attempt: SimAttempt, item: BulkItem) -> None:
        for child in attempt.children:
            self._wires.send_bulk(self, child, attempt.key, item)

    def _finish(
        self, attempt: SimAttempt, figures: reduction.Figures, part: reduction.Part | None
    ) -> None:
        order = attempt.order
        digest = digest_of(tuple(attempt.result))
        # The next sums take the place of the last ones.
        if order.spec.id in self.workers:
            self.workers[order.spec.id].results = {digest: tuple(attempt.result)}
        outcome = RoundOutcome(figures.samples, figures.loss_sum, figures.correct)
        ranges = () if part is None else part.ranges
        contributions = tuple(Contribution(r.member, r.start, r.units) for r in ranges)
        trained = order.kind is EntryKind.ROUND and part is not None
        reports = tuple(self._report(order, m) for m in order.participants) if trained else ()
        finished = events.AttemptFinished(
            order.index, order.ballot, digest, outcome, contributions, reports, order.links
        )
        self._later(0, finished)

    def _report(self, order: effects.BeginAttempt, member: MemberId) -> RoundReport:
        """Return a participant's report, as its share and its speed make it."""
        _, units = order.plan.units_of(member.node)
        compute_us = FIXED_US + units * self._wires.unit_us_of(member.node)
        return RoundReport(member.node, units, compute_us, FIXED_US, 0, 0, units * 8)
