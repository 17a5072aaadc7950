"""The job desk: requests of users on their way into the log.

A request is made at any node, which repeats it to the leader each tick until the log shows its
effect or the leader declines. Before a job enters the log, the leader asks every member to load
its data and code: a member that cannot is named, and the job does not start.
"""

from dataclasses import dataclass, field

from greedw_p2p.ids import JobId, MemberId, NodeId, StateDigest
from greedw_p2p.jobs.spec import JobPhase, JobSpec, JobState
from greedw_p2p.limits import TICK_US
from greedw_p2p.node.context import Context
from greedw_p2p.node.effects import LoadJob, Reply, Severity, UnloadJob
from greedw_p2p.node.events import JobLoaded, JobRefused, StopJob, SubmitJob, WorkerFailed
from greedw_p2p.wire.messages import Declined, JobPrepared, PrepareJob, Propose, RequestKind

ANSWER_WITHIN_US = 15_000_000
"""How long a request waits for a leader that does not answer, before it is given up."""


@dataclass(slots=True)
class _Request:
    """A request made here."""

    propose: Propose
    deadline_us: int


@dataclass(slots=True)
class _Starting:
    """A job that the leader gathers readiness for."""

    spec: JobSpec
    state: StateDigest
    origin: MemberId
    request: int
    prepared: set[MemberId] = field(default_factory=set[MemberId])


@dataclass(slots=True)
class Loading:
    """A job that this member loads, or has loaded, for a leader that asked."""

    spec: JobSpec
    state: StateDigest
    leader: MemberId
    loaded: bool = False


class JobDesk:
    """Takes requests, repeats them, prepares jobs, and says what the leader should propose."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._requests: dict[int, _Request] = {}
        self._starting: _Starting | None = None
        self._stop_wanted: dict[JobId, str] = {}
        self._fail_wanted: dict[JobId, str] = {}
        self._failure: tuple[JobId, str] | None = None
        self.loading: Loading | None = None

    def submit(self, event: SubmitJob) -> None:
        """Take a user's job, whose initial state this node holds."""
        propose = Propose(
            event.request, RequestKind.START_JOB, event.spec.id, event.spec, event.state, ""
        )
        self.loading = Loading(event.spec, event.state, self._context.id, loaded=True)
        self._enter(propose)

    def stop(self, event: StopJob) -> None:
        """Take a user's wish to stop a job."""
        job = None if self._context.ledger is None else self._context.ledger.running_job
        if job is None or job.spec.id != event.job:
            known = self._context.ledger is not None and any(
                state.spec.id == event.job for state in self._context.ledger.jobs()
            )
            error = f"job {event.job} has already ended" if known else f"no job {event.job} here"
            self._context.out.emit(Reply(event.request, error))
            return
        reason = f"stopped by a user at {self._context.me.name}"
        self._enter(
            Propose(event.request, RequestKind.STOP_JOB, event.job, None, StateDigest(b""), reason)
        )

    def worker_failed(self, event: WorkerFailed) -> None:
        """Ask for the job's end: this node cannot compute its units any more."""
        reason = f"{self._context.me.name}: {event.reason}"[:4000]
        self._failure = (event.job, reason)
        self._context.lost_job = event.job
        self._context.out.note(Severity.ERROR, "worker failed", job=event.job, reason=event.reason)
        self._propose_failure()

    def loaded(self, event: JobLoaded) -> None:
        """Tell the leader that this member is ready."""
        loading = self.loading
        if loading is not None and loading.spec.id == event.spec.id:
            loading.loaded = True
            self._context.out.send(loading.leader, JobPrepared(event.spec.id, ""))

    def refused(self, event: JobRefused) -> None:
        """Tell the leader why this member cannot run the job."""
        loading = self.loading
        if loading is None or loading.spec.id != event.job:
            return
        self._context.out.note(
            Severity.ERROR, "job refused here", job=event.job, reason=event.reason
        )
        self.loading = None
        self._context.out.send(loading.leader, JobPrepared(event.job, event.reason[:4000]))

    def on_propose(self, sender: MemberId, message: Propose, *, leads: bool) -> None:
        """Take a request as the leader; others ignore it, for it will be repeated."""
        ledger = self._context.ledger
        if not leads or ledger is None:
            return
        match message.kind:
            case RequestKind.START_JOB:
                self._gather(sender, message)
            case RequestKind.STOP_JOB:
                self._stop_wanted[message.job] = message.reason
            case RequestKind.FAIL_JOB:
                self._fail_wanted[message.job] = message.reason

    def on_prepare_job(self, sender: MemberId, message: PrepareJob) -> None:
        """Load a job for the leader, or answer at once if it is loaded."""
        loading = self.loading
        if loading is not None and loading.spec.id == message.spec.id:
            loading.leader = sender
            if loading.loaded:
                self._context.out.send(sender, JobPrepared(message.spec.id, ""))
            return
        self.loading = Loading(message.spec, message.state, sender)
        self._context.out.emit(LoadJob(message.spec, message.state, message.holder))

    def on_prepared(self, sender: MemberId, message: JobPrepared) -> None:
        """Count a member as ready, or decline the job with its reason."""
        starting = self._starting
        if starting is None or starting.spec.id != message.job:
            return
        if message.refusal:
            name = self._context.name_of(sender.node)
            self._decline_start(f"{name} cannot run it: {message.refusal}")
        else:
            starting.prepared.add(sender)

    def on_declined(self, message: Declined) -> None:
        """Answer the user, and drop what was loaded for the job."""
        if self.loading is not None and self.loading.spec.id == message.job:
            self.loading = None
            self._context.out.emit(UnloadJob(message.job, None))
        request = self._requests.get(message.request)
        if request is not None and request.propose.job == message.job:
            del self._requests[message.request]
            self._context.out.emit(Reply(message.request, message.reason, message.job))

    def tick(self, leader: MemberId | None, *, leads: bool) -> None:
        """Repeat requests; give up those that nobody answers; watch over a job that starts."""
        now_us = self._context.now_us
        for request in sorted(self._requests):
            pending = self._requests[request]
            if leader is not None and self._context.peers.is_reachable(leader):
                if pending.propose.kind is RequestKind.START_JOB:
                    pending.deadline_us = now_us + ANSWER_WITHIN_US
                self._context.out.send(leader, pending.propose)
            if now_us >= pending.deadline_us:
                self._give_up(request, leader)
        self._propose_failure()
        if self._starting is not None:
            self._watch_start(leads=leads)

    def wanted_job(self) -> JobState | None:
        """Return the job as the next entry should have it, or None if no request changes it."""
        ledger = self._context.ledger
        if ledger is None:
            return None
        job = ledger.running_job
        if job is not None:
            identifier = job.spec.id
            if identifier in self._fail_wanted:
                return job.ended(JobPhase.FAILED, self._fail_wanted[identifier])
            if identifier in self._stop_wanted:
                return job.ended(JobPhase.STOPPED, self._stop_wanted[identifier])
            return None
        starting = self._starting
        if starting is None or not all(m in starting.prepared for m in ledger.config.ids):
            return None
        return JobState.started(starting.spec, starting.state)

    def has_failed(self) -> bool:
        """Tell whether a member has said that it cannot compute the running job any more."""
        wanted = self.wanted_job()
        return wanted is not None and wanted.phase is JobPhase.FAILED

    def committed(self, job: JobState | None) -> None:
        """Answer the users whose requests the log now shows."""
        if job is None:
            return
        ended = job.phase is not JobPhase.RUNNING
        for request in sorted(self._requests):
            propose = self._requests[request].propose
            if propose.job != job.spec.id:
                continue
            if propose.kind is RequestKind.START_JOB or ended:
                del self._requests[request]
                self._context.out.emit(Reply(request, "", job.spec.id))
        if self._starting is not None and self._starting.spec.id == job.spec.id:
            self._starting = None
        if self.loading is not None and self.loading.spec.id == job.spec.id:
            self.loading = None
        if ended:
            self._stop_wanted.pop(job.spec.id, None)
            self._fail_wanted.pop(job.spec.id, None)
            if self._failure is not None and self._failure[0] == job.spec.id:
                self._failure = None

    def preparing(self) -> tuple[JobSpec, tuple[str, ...]] | None:
        """Return a job on its way into the log, and who is not ready as far as known here."""
        starting = self._starting
        config = self._context.config
        if starting is not None and config is not None:
            missing = tuple(m.name for m in config.members if m.id not in starting.prepared)
            return starting.spec, missing
        return None if self.loading is None else (self.loading.spec, ())

    def _enter(self, propose: Propose) -> None:
        deadline_us = self._context.now_us + ANSWER_WITHIN_US
        self._requests[propose.request] = _Request(propose, deadline_us)
        leader = self._leader()
        if leader is not None:
            self._context.out.send(leader, propose)

    def _leader(self) -> MemberId | None:
        ledger = self._context.ledger
        member = None if ledger is None else ledger.config.find(ledger.leader)
        return None if member is None else member.id

    def _propose_failure(self) -> None:
        ledger = self._context.ledger
        leader = self._leader()
        if self._failure is None or ledger is None or leader is None:
            return
        job, reason = self._failure
        if ledger.running_job is None or ledger.running_job.spec.id != job:
            return
        propose = Propose(0, RequestKind.FAIL_JOB, job, None, StateDigest(b""), reason)
        self._context.out.send(leader, propose)

    def _gather(self, sender: MemberId, message: Propose) -> None:
        ledger = self._context.ledger
        if ledger is None or message.spec is None:
            return
        if any(state.spec.id == message.job for state in ledger.jobs()):
            return
        busy = ledger.running_job
        if busy is not None:
            self._decline(sender, message, f"job {busy.spec.id} is running; stop it first")
            return
        starting = self._starting
        if starting is not None:
            if starting.spec.id != message.job:
                other = f"job {starting.spec.id} is about to start; wait for it or stop it"
                self._decline(sender, message, other)
            return
        self._starting = _Starting(message.spec, message.state, sender, message.request)
        self._ask_unprepared()

    def _watch_start(self, *, leads: bool) -> None:
        """Ask members that have not answered again; decline for one that is gone."""
        config = self._context.config
        if not leads or config is None:
            self._starting = None
            return
        for member in config.members:
            if not self._context.peers.is_reachable(member.id):
                self._decline_start(
                    f"{member.name} is not reachable at {member.address}; every member takes part "
                    "in a job"
                )
                return
        if self._context.now_us // TICK_US % 4 == 0:
            self._ask_unprepared()

    def _ask_unprepared(self) -> None:
        starting = self._starting
        config = self._context.config
        if starting is None or config is None:
            return
        waiting = tuple(m for m in config.ids if m not in starting.prepared)
        holder = NodeId(starting.origin.node)
        self._context.out.send_all(waiting, PrepareJob(starting.spec, starting.state, holder))

    def _decline_start(self, reason: str) -> None:
        starting = self._starting
        config = self._context.config
        if starting is None or config is None:
            return
        self._starting = None
        declined = Declined(starting.request, starting.spec.id, reason)
        self._context.out.send_all(config.ids, declined)

    def _decline(self, sender: MemberId, message: Propose, reason: str) -> None:
        self._context.out.send(sender, Declined(message.request, message.job, reason))

    def _give_up(self, request: int, leader: MemberId | None) -> None:
        pending = self._requests.pop(request)
        name = "no leader is known" if leader is None else self._context.name_of(leader.node)
        seconds = ANSWER_WITHIN_US // 1_000_000
        error = f"the leader ({name}) has not carried it out within {seconds} s"
        if pending.propose.kind is RequestKind.START_JOB:
            self.loading = None
            self._context.out.emit(UnloadJob(pending.propose.job, None))
        self._context.out.emit(Reply(request, error, pending.propose.job))
