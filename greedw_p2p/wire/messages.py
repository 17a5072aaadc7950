"""Every message that nodes exchange. The wire protocol page lists them with their bytes.

Three kinds of connection carry them. A *control* connection joins each pair of nodes; after the
handshake each message travels in an envelope with the sender's lineage, and both ends are exact
lives (node and incarnation) fixed by the handshake. A *bulk* connection follows a tree edge and
carries partial sums up and results down. A *join* connection redeems an invitation.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

from greedw_p2p.config import Config, Member
from greedw_p2p.ids import (
    Ballot,
    ClusterIdField,
    ContentDigestField,
    Counter,
    EntryIdField,
    EntryIndexField,
    JobIdField,
    LineageIdField,
    MemberId,
    NodeIdField,
    StateDigestField,
)
from greedw_p2p.jobs.spec import JobSpec, Text
from greedw_p2p.limits import MEMBERS_MAX, MESSAGE_ITEMS_MAX
from greedw_p2p.links.cell import LinkCell
from greedw_p2p.log.entry import Entry, EntryKind, RoundOutcome
from greedw_p2p.membership.heartbeat import Heartbeat as Heartbeat
from greedw_p2p.membership.rumour import Rumour as Rumour
from greedw_p2p.record import Record
from greedw_p2p.view import RoundReport, View

PROTOCOL_VERSION = 1


class Channel(StrEnum):
    """What a connection is for."""

    CONTROL = "control"
    BULK = "bulk"
    JOIN = "join"


# -- handshake, on every connection, before anything else ------------------------------------


class Hello(Record, frozen=True):
    """First frame of whoever dialled. ``member`` says who, in which life, and where to dial back.

    ``tree`` is the stripe that a bulk connection serves; 0 elsewhere.
    """

    version: Annotated[int, msgspec.Meta(ge=0, lt=65536)]
    channel: Channel
    cluster: ClusterIdField
    member: Member
    tree: Annotated[int, msgspec.Meta(ge=0, lt=64)]


class Welcome(Record, frozen=True):
    """Answer to a Hello that is taken; the connection is open."""

    member: Member


class RefusalCode(StrEnum):
    """Why a Hello or a join was refused."""

    VERSION = "version"
    CLUSTER = "cluster"
    IDENTITY = "identity"
    TOKEN = "token"  # noqa: S105 - the word for an invitation, no secret
    BUSY = "busy"


class Refused(Record, frozen=True):
    """Answer to a Hello or a JoinRequest that is not taken; the connection closes."""

    code: RefusalCode
    reason: Text


class JoinRequest(Record, frozen=True):
    """Redeems an invitation; ``check_only`` asks whether it would be taken, using nothing up."""

    token_id: Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
    secret: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    check_only: bool


class JoinAccepted(Record, frozen=True):
    """The invitation holds: which cluster, which history, and whom to talk to."""

    cluster: ClusterIdField
    cluster_name: Annotated[str, msgspec.Meta(max_length=64)]
    lineage: LineageIdField
    members: Annotated[tuple[Member, ...], msgspec.Meta(max_length=MEMBERS_MAX)]


# -- heartbeats, gossip, measuring ------------------------------------------------------------


class Gossip(Record, frozen=True):
    """Rumours and link cells that the receiver may not have. ``answer`` asks for the like back."""

    rumours: Annotated[tuple[Rumour, ...], msgspec.Meta(max_length=MEMBERS_MAX)]
    links: Annotated[tuple[LinkCell, ...], msgspec.Meta(max_length=MESSAGE_ITEMS_MAX)]
    answer: bool


class ProbeChunk(Record, frozen=True):
    """One of ``count`` equal pieces sent back to back; the receiver times the second half.

    The frame's body is ``size`` bytes of padding.
    """

    probe: Counter
    number: Annotated[int, msgspec.Meta(ge=0, lt=256)]
    count: Annotated[int, msgspec.Meta(ge=2, le=256)]
    size: Annotated[int, msgspec.Meta(ge=1, le=65536)]


# -- the agreement (see docs/architecture: agreement) -----------------------------------------


class Prepare(Record, frozen=True):
    """Asks for a promise to take part in no lower ballot of the entry after ``previous``."""

    index: EntryIndexField
    previous: EntryIdField
    ballot: Ballot


class Promise(Record, frozen=True):
    """The promise, with the entry accepted at the highest ballot so far, if any."""

    index: EntryIndexField
    previous: EntryIdField
    ballot: Ballot
    accepted_ballot: Ballot | None
    accepted: Entry | None


class Start(Record, frozen=True):
    """Starts an attempt: compute your part of the plan and sum it up the tree.

    The plan is not sent: it follows from the view and ``participants``, and ``plan`` is its digest.
    """

    index: EntryIndexField
    previous: EntryIdField
    ballot: Ballot
    kind: EntryKind
    participants: Annotated[tuple[MemberId, ...], msgspec.Meta(max_length=MEMBERS_MAX)]
    view: Annotated[bytes, msgspec.Meta(max_length=16)]
    plan: Annotated[bytes, msgspec.Meta(max_length=16)]


class Accept(Record, frozen=True):
    """Asks to accept the entry at this ballot; ``holder`` has the bytes that it names."""

    ballot: Ballot
    entry: Entry
    holder: NodeIdField


class Ack(Record, frozen=True):
    """The entry ``entry_id`` is accepted, its bytes are held; ``state`` is the digest before it."""

    index: EntryIndexField
    previous: EntryIdField
    ballot: Ballot
    entry_id: EntryIdField
    state: StateDigestField


class Nack(Record, frozen=True):
    """Refusal of anything below the promised ballot."""

    index: EntryIndexField
    previous: EntryIdField
    ballot: Ballot
    promised: Ballot


class Broken(Record, frozen=True):
    """A participant's word to the ballot's owner: the attempt cannot end here, and why."""

    index: EntryIndexField
    previous: EntryIdField
    ballot: Ballot
    reason: Text


class Commit(Record, frozen=True):
    """The entry is chosen."""

    entry: Entry


class CatchUp(Record, frozen=True):
    """Asks for the entries after ``committed``; ``fresh`` for the newest one and its view alone."""

    committed: EntryIndexField
    fresh: bool


class Entries(Record, frozen=True):
    """Committed entries in order; or, with ``from_view``, only the newest and the view after it.

    The second form is for a node further behind than entries are kept.
    """

    entries: Annotated[tuple[Entry, ...], msgspec.Meta(max_length=64)]
    from_view: View | None


class NewLineage(Record, frozen=True):
    """Answer to anything of an older lineage: this history replaced it."""

    old: LineageIdField
    new: LineageIdField
    config: Config


# -- requests on their way to the leader ------------------------------------------------------


class RequestKind(StrEnum):
    """What a node asks the leader to put into the log."""

    START_JOB = "start-job"
    STOP_JOB = "stop-job"
    FAIL_JOB = "fail-job"


class Fault(StrEnum):
    """What kind of reason a request was not carried out for."""

    FAILED = "failed"
    UNREACHABLE = "unreachable"
    BUSY = "busy"
    UNFIT = "unfit"


class Propose(Record, frozen=True):
    """Asks the leader for a change; repeated until it shows in the log or is refused.

    ``state`` and ``holder`` name the initial state of a job and who has its bytes.
    """

    request: Counter
    kind: RequestKind
    job: JobIdField
    spec: JobSpec | None
    state: StateDigestField
    reason: Text


class Evict(Record, frozen=True):
    """Asks the leader to remove a member that is gone; repeated until the log shows it."""

    member: MemberId


class Declined(Record, frozen=True):
    """The leader will not propose the request, and why."""

    request: Counter
    job: JobIdField
    reason: Text
    fault: Fault


class PrepareJob(Record, frozen=True):
    """Asks every member, before the job enters the log, to load its data and its code."""

    spec: JobSpec
    state: StateDigestField
    holder: NodeIdField


class JobPrepared(Record, frozen=True):
    """The member can run the job and holds its initial state, or says why not."""

    job: JobIdField
    refusal: Text


# -- content by digest ------------------------------------------------------------------------


class GetBytes(Record, frozen=True):
    """Asks for a piece of the content named by ``digest``."""

    digest: Annotated[bytes, msgspec.Meta(max_length=16)]
    offset: Counter
    size: Annotated[int, msgspec.Meta(ge=1, le=65536)]


class Bytes(Record, frozen=True):
    """A piece of content in the frame's body; ``total`` 0 says that the sender has none of it."""

    digest: Annotated[bytes, msgspec.Meta(max_length=16)]
    offset: Counter
    total: Counter


# -- bulk connections ---------------------------------------------------------------------------


class StreamOpen(Record, frozen=True):
    """Opens one direction of one attempt on a tree edge, and names all that both must share."""

    lineage: LineageIdField
    index: EntryIndexField
    ballot: Ballot
    tree: Counter
    view: Annotated[bytes, msgspec.Meta(max_length=16)]
    plan: Annotated[bytes, msgspec.Meta(max_length=16)]


class Chunk(Record, frozen=True):
    """Announces the chunk in the frame's body: part of a sum on its way up, of the result down."""

    lineage: LineageIdField
    index: EntryIndexField
    ballot: Ballot
    tree: Counter
    bucket: Counter
    chunk: Counter


class Contribution(Record, frozen=True):
    """One participant's part in a sum: the units [start, start + units) of the round."""

    member: MemberId
    start: Counter
    units: Counter


class PartSummary(Record, frozen=True):
    """Closes the way up: who is in the subtree's sum, with which figures and reports."""

    lineage: LineageIdField
    index: EntryIndexField
    ballot: Ballot
    tree: Counter
    contributions: Annotated[tuple[Contribution, ...], msgspec.Meta(max_length=MEMBERS_MAX)]
    outcome: RoundOutcome
    reports: Annotated[tuple[RoundReport, ...], msgspec.Meta(max_length=MEMBERS_MAX)]
    links: Annotated[tuple[LinkCell, ...], msgspec.Meta(max_length=MESSAGE_ITEMS_MAX)]


class ResultSummary(Record, frozen=True):
    """Closes the way down: the digest of the result's bytes and what it came to."""

    lineage: LineageIdField
    index: EntryIndexField
    ballot: Ballot
    tree: Counter
    digest: ContentDigestField
    outcome: RoundOutcome


ControlMessage = (
    Heartbeat
    | Gossip
    | ProbeChunk
    | Prepare
    | Promise
    | Start
    | Accept
    | Ack
    | Nack
    | Broken
    | Commit
    | CatchUp
    | Entries
    | NewLineage
    | Propose
    | Evict
    | Declined
    | PrepareJob
    | JobPrepared
)
"""What the node's state machine sends and receives."""

ContentMessage = GetBytes | Bytes
HandshakeMessage = Hello | Welcome | Refused | JoinRequest | JoinAccepted
BulkMessage = StreamOpen | Chunk | PartSummary | ResultSummary
Message = ControlMessage | ContentMessage | HandshakeMessage | BulkMessage
