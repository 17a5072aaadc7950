"""What a node asks its shell to do. Effects are carried out in order, each before the next."""

from dataclasses import dataclass, field
from enum import IntEnum

from greedw_p2p.config import Address, Config
from greedw_p2p.ids import (
    Ballot,
    ContentDigest,
    EntryId,
    EntryIndex,
    JobId,
    LineageId,
    MemberId,
    NodeId,
    StateDigest,
)
from greedw_p2p.jobs.spec import JobSpec, JobState
from greedw_p2p.links.cell import LinkCell
from greedw_p2p.log.entry import Entry, EntryKind
from greedw_p2p.plan.plan import Plan
from greedw_p2p.wire.messages import ControlMessage, Fault


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message on the control connection to ``to``; dropped if there is none."""

    to: MemberId
    message: ControlMessage


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a control connection, unless one is open or being opened."""

    node: NodeId
    address: Address


@dataclass(frozen=True, slots=True)
class Persist:
    """Write the durable part of the node's state and sync it, before the next effect.

    Only what changed is given: ``committed`` the newest known committed config, ``accepted`` an
    accepted config change newer than that, with its ballot.
    """

    lineage: LineageId
    committed_index: EntryIndex
    committed: Config
    accepted: tuple[EntryIndex, Ballot, Config] | None


@dataclass(frozen=True, slots=True)
class LoadJob:
    """Start a worker for the job, load data and code, fetch the initial state from ``holder``.

    Answered by JobLoaded or JobRefused. A worker that already has this job answers at once.
    """

    spec: JobSpec
    state: StateDigest
    holder: NodeId


@dataclass(frozen=True, slots=True)
class UnloadJob:
    """End the job's worker and forget its memory. ``final`` is the job's last state, if any."""

    job: JobId
    final: JobState | None


@dataclass(frozen=True, slots=True)
class BeginAttempt:
    """Compute this node's units and take part in the all-reduce of ``plan``.

    ``start`` and ``stop`` bound the whole round's samples within the epoch's permutation (for an
    evaluation: within the held-out set). ``links`` ride up with this node's report. Chunks of a
    lower ballot of the entry are not used any more.
    """

    lineage: LineageId
    index: EntryIndex
    ballot: Ballot
    kind: EntryKind
    plan: Plan
    spec: JobSpec
    round_number: int
    start: int
    stop: int
    participants: tuple[MemberId, ...]
    links: tuple[LinkCell, ...]


@dataclass(frozen=True, slots=True)
class CancelAttempt:
    """Give up the attempt, if it is in progress; its result bytes, if whole, stay."""

    index: EntryIndex
    ballot: Ballot


@dataclass(frozen=True, slots=True)
class FetchResult:
    """Fetch a result's bytes by digest from ``holder``.

    Answered by AttemptFinished, or by AttemptBroken where they do not come.
    """

    index: EntryIndex
    ballot: Ballot
    digest: ContentDigest
    holder: NodeId


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """Compute the state after ``entry_id`` into the second copy; answered by StateApplied."""

    entry_id: EntryId
    digest: ContentDigest
    samples: int
    spec: JobSpec
    round_number: int


@dataclass(frozen=True, slots=True)
class FlipState:
    """The entry is chosen: the second copy becomes the state."""

    entry_id: EntryId


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a user's request; ``error`` empty means done, else ``fault`` is its kind."""

    request: int
    error: str = ""
    job: JobId | None = None
    fault: Fault = Fault.FAILED


class Severity(IntEnum):
    """How much an operator should care."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True, slots=True)
class Note:
    """Something to log: a past-tense phrase and its figures."""

    severity: Severity
    event: str
    fields: dict[str, str | int | float | None] = field(
        default_factory=dict[str, "str | int | float | None"]
    )


@dataclass(frozen=True, slots=True)
class Committed:
    """An entry was committed: the shell may tell those who follow. No answer."""

    entry: Entry

    @property
    def index(self) -> EntryIndex:
        """The entry's index."""
        return self.entry.index

    @property
    def kind(self) -> EntryKind:
        """What the entry decided."""
        return self.entry.kind

    @property
    def job(self) -> JobState | None:
        """The newest job after the entry."""
        return self.entry.job


@dataclass(frozen=True, slots=True)
class Stopped:
    """The node has left, or must stop: the shell ends it. ``failed`` says that it broke."""

    reason: str
    failed: bool = False


Effect = (
    Send
    | Dial
    | Persist
    | LoadJob
    | UnloadJob
    | BeginAttempt
    | CancelAttempt
    | FetchResult
    | ApplyResult
    | FlipState
    | Reply
    | Note
    | Committed
    | Stopped
)
