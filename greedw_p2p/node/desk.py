"""The job desk: requests of users on their way into the log.

A request is made at any node, which repeats it to the leader each tick until the log shows its
effect or the leader declines. Before a job enters the log, the leader asks every member to load
its data and code: a member that cannot is named, and the job does not start. The leader repeats
the question until then; a member that is not asked any more unloads the job.
"""

from dataclasses import dataclass, field

from greedw_p2p.ids import JobId, MemberId, StateDigest
from greedw_p2p.jobs.spec import JobPhase, JobSpec, JobState
from greedw_p2p.limits import TICK_US
from greedw_p2p.node.context import Context
from greedw_p2p.node.effects import LoadJob, Reply, Severity, UnloadJob
from greedw_p2p.node.events import JobLoaded, JobRefused, StopJob, SubmitJob, WorkerFailed
from greedw_p2p.wire.messages import Declined, Fault, JobPrepared, PrepareJob, Propose, RequestKind

ANSWER_WITHIN_US = 15_000_000
"""How long a request waits for a leader that can act, before it is given up; and how long a job
stays loaded that no leader asks for."""

DECLINED_KEPT = 16
"""Newest jobs that this node has declined as the leader."""


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
class _Loading:
    """A job that this member loads, or has loaded, for a leader that asked at ``asked_us``."""

    spec: JobSpec
    leader: MemberId
    asked_us: int
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
        self._loading: dict[JobId, _Loading] = {}
        self._declined: dict[JobId, tuple[Fault, str]] = {}
        self._begun: JobId | None = None

    def submit(self, event: SubmitJob) -> None:
        """Take a user's job, whose initial state this node holds."""
        propose = Propose(
            event.request, RequestKind.START_JOB, event.spec.id, event.spec, event.state, ""
        )
        self._loading[event.spec.id] = _Loading(
            event.spec, self._context.id, self._context.now_us, loaded=True
        )
        self._enter(propose)

    def stop(self, event: StopJob) -> None:
        """Take a user's wish to stop a job, which runs or is about to start."""
        if not self._context.is_member:
            error = "this node is no member yet; stop the job on one that is"
            self._context.out.emit(Reply(event.request, error))
            return
        if not self._runs(event.job) and event.job not in self._loading:
            ended = self._is_in_log(event.job)
            error = f"job {event.job} has already ended" if ended else f"no job {event.job} here"
            self._context.out.emit(Reply(event.request, error))
            return
        reason = f"stopped by a user at {self._context.my_name}"
        self._enter(
            Propose(event.request, RequestKind.STOP_JOB, event.job, None, StateDigest(b""), reason)
        )

    def worker_failed(self, event: WorkerFailed) -> None:
        """Ask for the end of a job that runs; refuse one that has not started."""
        loading = self._loading.pop(event.job, None)
        if loading is None:
            self._lose(event.job, event.reason)
        else:
            self._refuse(event.job, event.reason, loading.leader)

    def loaded(self, event: JobLoaded) -> None:
        """Tell the leader that this member is ready."""
        loading = self._loading.get(event.spec.id)
        if loading is not None:
            loading.loaded = True
            self._context.out.send(loading.leader, JobPrepared(event.spec.id, ""))

    def refused(self, event: JobRefused) -> None:
        """Tell the leader why this member cannot run the job."""
        loading = self._loading.pop(event.job, None)
        if loading is not None:
            self._refuse(event.job, event.reason, loading.leader)

    def on_propose(self, sender: MemberId, message: Propose, *, leads: bool) -> None:
        """Take a request as the leader; others ignore it, for it will be repeated."""
        ledger = self._context.ledger
        if not leads or ledger is None:
            return
        match message.kind:
            case RequestKind.START_JOB:
                self._gather(sender, message)
            case RequestKind.STOP_JOB if self._runs(message.job):
                self._stop_wanted[message.job] = message.reason
            case RequestKind.STOP_JOB:
                if self._starting is not None and self._starting.spec.id == message.job:
                    self._decline_start(Fault.FAILED, message.reason)
            case RequestKind.FAIL_JOB:
                if self._runs(message.job):
                    self._fail_wanted[message.job] = message.reason

    def on_prepare_job(self, sender: MemberId, message: PrepareJob) -> None:
        """Load a job for the leader, or answer at once if it is loaded."""
        job, now_us = message.spec.id, self._context.now_us
        if self._is_in_log(job):
            return
        loading = self._loading.get(job)
        if loading is None:
            self._loading[job] = _Loading(message.spec, sender, now_us)
            self._context.out.emit(LoadJob(message.spec, message.state, message.holder))
            return
        loading.leader, loading.asked_us = sender, now_us
        if loading.loaded:
            self._context.out.send(sender, JobPrepared(job, ""))

    def on_prepared(self, sender: MemberId, message: JobPrepared) -> None:
        """Count a member as ready, or decline the job with its reason."""
        starting = self._starting
        if starting is None or starting.spec.id != message.job:
            return
        if message.refusal:
            name = self._context.name_of(sender.node)
            self._decline_start(Fault.UNFIT, f"{name} cannot run it: {message.refusal}")
        else:
            starting.prepared.add(sender)

    def on_declined(self, message: Declined) -> None:
        """Answer the users, and drop what was loaded for the job."""
        if not self._is_in_log(message.job):
            self._drop(message.job, message.fault, message.reason)

    def tick(self, *, leads: bool) -> None:
        """Repeat requests; give up those that nobody answers; watch over a job that starts."""
        now_us, leader = self._context.now_us, self._context.leader
        for request in sorted(self._requests):
            pending = self._requests[request]
            if leader is not None:
                self._context.out.send(leader, pending.propose)
            if self._context.leader_acts and self._will_be_answered(pending.propose):
                pending.deadline_us = now_us + ANSWER_WITHIN_US
            elif now_us >= pending.deadline_us:
                self._give_up(request, leader)
        for job in sorted(self._loading):
            if now_us - self._loading[job].asked_us >= ANSWER_WITHIN_US and not self._starts(job):
                self._drop(job, Fault.UNREACHABLE, "no leader asks for it any more")
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
        loading = self._loading.pop(job.spec.id, None)
        if not ended and self._begun != job.spec.id:
            self._begun = job.spec.id
            is_ready = loading is not None and loading.loaded
            if self._context.is_member and not is_ready:
                self._lose(job.spec.id, "it was not ready any more when the job started")
        if ended:
            self._stop_wanted.pop(job.spec.id, None)
            self._fail_wanted.pop(job.spec.id, None)
            if self._failure is not None and self._failure[0] == job.spec.id:
                self._failure = None

    def preparing(self) -> tuple[tuple[JobSpec, tuple[str, ...]], ...]:
        """Return the jobs on their way into the log, and who is not ready as far as known here."""
        starting, config = self._starting, self._context.config
        found: dict[JobId, tuple[JobSpec, tuple[str, ...]]] = {
            job: (loading.spec, ()) for job, loading in self._loading.items()
        }
        if starting is not None and config is not None:
            missing = tuple(
                self._context.name_of(m.node)
                for m in config.members
                if m.id not in starting.prepared
            )
            found[starting.spec.id] = (starting.spec, missing)
        return tuple(found[job] for job in sorted(found))

    def _enter(self, propose: Propose) -> None:
        deadline_us = self._context.now_us + ANSWER_WITHIN_US
        self._requests[propose.request] = _Request(propose, deadline_us)
        if self._context.leader is not None:
            self._context.out.send(self._context.leader, propose)

    def _runs(self, job: JobId) -> bool:
        running = None if self._context.ledger is None else self._context.ledger.running_job
        return running is not None and running.spec.id == job

    def _is_in_log(self, job: JobId) -> bool:
        ledger = self._context.ledger
        return ledger is not None and any(state.spec.id == job for state in ledger.jobs())

    def _starts(self, job: JobId) -> bool:
        """Tell whether a user waits here for the job's start."""
        return any(
            pending.propose.job == job and pending.propose.kind is RequestKind.START_JOB
            for pending in self._requests.values()
        )

    def _will_be_answered(self, propose: Propose) -> bool:
        """Tell whether a leader that acts is sure to answer, however long it takes."""
        return propose.kind is RequestKind.START_JOB or self._runs(propose.job)

    def _lose(self, job: JobId, why: str) -> None:
        """Go on without the job's worker, and ask for the job's end."""
        self._failure = (job, f"{self._context.my_name}: {why}"[:4000])
        self._context.lost_job = job
        self._context.out.note(Severity.ERROR, "worker failed", job=job, reason=why)
        self._propose_failure()

    def _refuse(self, job: JobId, reason: str, leader: MemberId) -> None:
        """Say that this member cannot run a job that has not started."""
        self._context.out.note(Severity.ERROR, "job refused here", job=job, reason=reason)
        self._context.out.emit(UnloadJob(job, None))
        self._context.out.send(leader, JobPrepared(job, reason[:4000]))
        self._answer(job, Fault.UNFIT, f"{self._context.my_name} cannot run it: {reason}")

    def _drop(self, job: JobId, fault: Fault, reason: str) -> None:
        """Unload a job that does not start, and answer those who wait for it."""
        if self._loading.pop(job, None) is not None:
            self._context.out.emit(UnloadJob(job, None))
        self._answer(job, fault, reason)

    def _answer(self, job: JobId, fault: Fault, reason: str) -> None:
        """Answer the requests of users about a job that does not start."""
        for request in sorted(self._requests):
            propose = self._requests[request].propose
            if propose.job == job:
                del self._requests[request]
                error = "" if propose.kind is RequestKind.STOP_JOB else reason
                self._context.out.emit(Reply(request, error, job, fault))

    def _propose_failure(self) -> None:
        leader = self._context.leader
        if self._failure is None or leader is None:
            return
        job, reason = self._failure
        if not self._runs(job):
            return
        propose = Propose(0, RequestKind.FAIL_JOB, job, None, StateDigest(b""), reason)
        self._context.out.send(leader, propose)

    def _gather(self, sender: MemberId, message: Propose) -> None:
        ledger = self._context.ledger
        if ledger is None or message.spec is None:
            return
        if self._is_in_log(message.job):
            return
        busy = ledger.running_job
        if busy is not None:
            running = f"job {busy.spec.id} is running; stop it first"
            self._decline(sender, message, Fault.BUSY, running)
            return
        declined = self._declined.get(message.job)
        if declined is not None:
            self._decline(sender, message, *declined)
            return
        starting = self._starting
        if starting is not None:
            if starting.spec.id != message.job:
                other = f"job {starting.spec.id} is about to start; wait for it or stop it"
                self._decline(sender, message, Fault.BUSY, other)
            return
        self._starting = _Starting(message.spec, message.state, sender, message.request)
        self._ask_members()

    def _watch_start(self, *, leads: bool) -> None:
        """Ask again; decline for a member that is gone."""
        config = self._context.config
        if not leads or config is None:
            self._starting = None
            return
        for member in config.members:
            if not self._context.peers.is_reachable(member.id):
                name = self._context.name_of(member.node)
                missing = f"{name} is not reachable at {member.address}"
                self._decline_start(
                    Fault.UNREACHABLE, f"{missing}; every member takes part in a job"
                )
                return
        if self._context.now_us // TICK_US % 4 == 0:
            self._ask_members()

    def _ask_members(self) -> None:
        """Ask those that are not ready, and tell those that are that they are still asked."""
        starting = self._starting
        config = self._context.config
        if starting is None or config is None:
            return
        prepare = PrepareJob(starting.spec, starting.state, starting.origin.node)
        self._context.out.send_all(config.ids, prepare)

    def _decline_start(self, fault: Fault, reason: str) -> None:
        starting = self._starting
        config = self._context.config
        if starting is None or config is None:
            return
        self._starting = None
        # The request may be repeated, for this answer is still on its way, or may get lost.
        self._declined[starting.spec.id] = (fault, reason)
        if len(self._declined) > DECLINED_KEPT:
            del self._declined[next(iter(self._declined))]
        declined = Declined(starting.request, starting.spec.id, reason, fault)
        self._context.out.send_all(config.ids, declined)

    def _decline(self, sender: MemberId, message: Propose, fault: Fault, reason: str) -> None:
        self._context.out.send(sender, Declined(message.request, message.job, reason, fault))

    def _give_up(self, request: int, leader: MemberId | None) -> None:
        pending = self._requests.pop(request)
        name = "no leader is known" if leader is None else self._context.name_of(leader.node)
        seconds = ANSWER_WITHIN_US // 1_000_000
        error = f"the leader ({name}) has not carried it out within {seconds} s"
        self._context.out.emit(Reply(request, error, pending.propose.job, Fault.UNREACHABLE))
        if pending.propose.kind is RequestKind.START_JOB:
            self._drop(pending.propose.job, Fault.UNREACHABLE, error)
