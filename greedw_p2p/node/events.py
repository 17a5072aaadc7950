"""What can happen to a node. The shell turns sockets, timers and processes into these."""

from dataclasses import dataclass

from greedw_p2p.config import Member
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
from greedw_p2p.jobs.spec import JobSpec
from greedw_p2p.links.cell import LinkCell
from greedw_p2p.log.entry import RoundOutcome
from greedw_p2p.view import RoundReport
from greedw_p2p.wire.messages import Contribution, ControlMessage


@dataclass(frozen=True, slots=True)
class Ticked:
    """A heartbeat interval has passed. ``lag_us`` is how late the shell's loop ran."""

    lag_us: int = 0


@dataclass(frozen=True, slots=True)
class PeerConnected:
    """A control connection to ``member`` is open, the handshake done."""

    member: Member


@dataclass(frozen=True, slots=True)
class PeerDisconnected:
    """The control connection to ``peer`` ended. ``reason`` says how, for people."""

    peer: MemberId
    reason: str


@dataclass(frozen=True, slots=True)
class DialFailed:
    """A connection to ``node`` could not be opened."""

    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A peer's message; ``lineage`` is the one in its envelope."""

    sender: MemberId
    lineage: LineageId
    message: ControlMessage


@dataclass(frozen=True, slots=True)
class AttemptFinished:
    """This node holds the attempt's whole result, and its digest is the one that the root named.

    Only the root gets ``contributions``, ``reports`` and ``links``, of all participants.
    """

    index: EntryIndex
    ballot: Ballot
    digest: ContentDigest
    outcome: RoundOutcome
    contributions: tuple[Contribution, ...] = ()
    reports: tuple[RoundReport, ...] = ()
    links: tuple[LinkCell, ...] = ()


@dataclass(frozen=True, slots=True)
class AttemptBroken:
    """The attempt cannot end: a tree edge broke, or a peer sent what the plan does not allow.

    ``phase`` says what the node was doing ("reduce, waiting for chunk 3 of lab-2").
    """

    index: EntryIndex
    ballot: Ballot
    peer: NodeId
    phase: str
    reason: str


@dataclass(frozen=True, slots=True)
class JobLoaded:
    """The worker has the job's data and compiled code, and this node holds the initial state.

    ``state`` is the digest of the initial state's bytes. For the node where the job was submitted,
    ``spec`` is complete now (data digest, sizes).
    """

    spec: JobSpec
    state: StateDigest


@dataclass(frozen=True, slots=True)
class JobRefused:
    """This node cannot run the job: data missing or different, code that fails, no memory."""

    job: JobId
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The worker process raised or died; ``reason`` includes its last lines."""

    job: JobId
    reason: str


@dataclass(frozen=True, slots=True)
class StateApplied:
    """The second copy of the state now holds the state after ``entry_id``, with this digest."""

    entry_id: EntryId
    state: StateDigest


@dataclass(frozen=True, slots=True)
class SubmitJob:
    """A user asks for a job. ``spec`` is complete: the local worker has loaded it."""

    request: int
    spec: JobSpec
    state: StateDigest


@dataclass(frozen=True, slots=True)
class StopJob:
    """A user asks to stop a job after the round in progress."""

    request: int
    job: JobId


@dataclass(frozen=True, slots=True)
class EvictMember:
    """An operator asks to remove a member that is gone for good; ``who`` is its name or id."""

    request: int
    who: str


@dataclass(frozen=True, slots=True)
class Leave:
    """A user or a signal asks this node to leave after the round in progress.

    The shell stops the node when ``Stopped`` comes out.
    """

    request: int | None


Event = (
    Ticked
    | PeerConnected
    | PeerDisconnected
    | DialFailed
    | MessageReceived
    | AttemptFinished
    | AttemptBroken
    | JobLoaded
    | JobRefused
    | WorkerFailed
    | StateApplied
    | SubmitJob
    | StopJob
    | EvictMember
    | Leave
)
