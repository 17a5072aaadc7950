"""Identifiers: who, which life of whom, which entry, which ballot.

Node, cluster and lineage ids are lower-case hexadecimal text, so that comparing them as text is a
total order that every node shares. ``NodeId`` and its like are for our own signatures; the
``...Field`` forms carry the pattern that a value from a peer must match.
"""

from typing import Annotated, Final, NewType

import msgspec

from greedw_p2p.record import Record

NodeId = NewType("NodeId", str)
"""A machine, for as long as it keeps its state directory: 32 hexadecimal digits."""

Incarnation = NewType("Incarnation", int)
"""One life of a node's process, from 1; raised and synced before the process first speaks."""

ClusterId = NewType("ClusterId", str)
LineageId = NewType("LineageId", str)
"""One history of the log. A recovery that had to give up a quorum starts a new one."""

JobId = NewType("JobId", str)
EntryIndex = NewType("EntryIndex", int)
EntryId = NewType("EntryId", bytes)
"""Digest of a whole entry, 16 bytes; ``NO_ENTRY`` before the first."""

StateDigest = NewType("StateDigest", bytes)
"""Digest of a job's whole replicated state, 16 bytes; empty where no job has state."""

ContentDigest = NewType("ContentDigest", bytes)
"""Digest of a result's bytes, 16 bytes; empty where an entry has no result."""

NO_ENTRY: Final = EntryId(b"")
NO_STATE: Final = StateDigest(b"")
NO_CONTENT: Final = ContentDigest(b"")

_HEX_ID = msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")
_COUNTER = msgspec.Meta(ge=0, lt=2**62)

NodeIdField = Annotated[NodeId, _HEX_ID]
ClusterIdField = Annotated[ClusterId, _HEX_ID]
LineageIdField = Annotated[LineageId, _HEX_ID]
IncarnationField = Annotated[Incarnation, msgspec.Meta(ge=1, lt=2**62)]
JobIdField = Annotated[JobId, msgspec.Meta(pattern=r"^[0-9a-z-]{1,40}\Z")]
EntryIndexField = Annotated[EntryIndex, _COUNTER]
EntryIdField = Annotated[EntryId, msgspec.Meta(max_length=16)]
StateDigestField = Annotated[StateDigest, msgspec.Meta(max_length=16)]
ContentDigestField = Annotated[ContentDigest, msgspec.Meta(max_length=16)]
Counter = Annotated[int, _COUNTER]
"""A whole number from 0, below 2**62, so that sums of a few never leave 64 bits."""


class MemberId(Record, frozen=True, order=True):
    """One life of one node. Votes and attempts name members, never bare nodes."""

    node: NodeIdField
    incarnation: IncarnationField


class Ballot(Record, frozen=True, order=True):
    """A numbered try to decide an entry: by number, then by owner.

    Number 0 belongs to the leader that the entry before named, and needs no promise.
    """

    number: Counter
    owner: NodeIdField


def short(identifier: str | bytes) -> str:
    """Return the first eight hexadecimal digits, for people."""
    return identifier.hex()[:8] if isinstance(identifier, bytes) else identifier[:8]
