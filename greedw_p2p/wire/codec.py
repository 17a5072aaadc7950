"""Messages to bytes and back: the numbers of the kinds, and what each connection may carry.

Decoding checks in this order, cheapest first: is the kind one that this connection may carry, is a
body allowed, does the header match the record's fields and bounds. Whatever fails is a PeerError
that names the message, so a log line says what the peer got wrong.
"""

from collections.abc import Collection
from typing import Any, Final, TypeVar, cast, get_args

from greedw_p2p.errors import MalformedMessageError
from greedw_p2p.ids import LineageId
from greedw_p2p.limits import (
    BULK_HEADER_BYTES_MAX,
    CHUNK_BYTES_MAX,
    CONTROL_BODY_BYTES_MAX,
    CONTROL_HEADER_BYTES_MAX,
    KIB,
)
from greedw_p2p.record import Record, pack, unpack
from greedw_p2p.wire import messages
from greedw_p2p.wire.framing import Frame, FrameLimits, pack_prefix
from greedw_p2p.wire.messages import (
    BulkMessage,
    ContentMessage,
    ControlMessage,
    HandshakeMessage,
    Message,
)

LINEAGE_BYTES: Final = 16
"""A control header begins with the sender's lineage, raw; the record follows."""

HANDSHAKE_LIMITS: Final = FrameLimits(header_bytes_max=8 * KIB, body_bytes_max=0)
"""For what a stranger may say before it is known who it is, and for the answer to a Hello."""

JOIN_ANSWER_LIMITS: Final = FrameLimits(header_bytes_max=CONTROL_HEADER_BYTES_MAX, body_bytes_max=0)
"""For the answer to a JoinRequest, read by a node that chose whom to ask: it lists all members."""

CONTROL_LIMITS: Final = FrameLimits(
    header_bytes_max=LINEAGE_BYTES + CONTROL_HEADER_BYTES_MAX,
    body_bytes_max=CONTROL_BODY_BYTES_MAX,
)
BULK_LIMITS: Final = FrameLimits(
    header_bytes_max=BULK_HEADER_BYTES_MAX, body_bytes_max=CHUNK_BYTES_MAX
)

KIND_OF: Final[dict[type[Record], int]] = {
    # Handshake, on every connection: 1 to 15.
    messages.Hello: 1,
    messages.Welcome: 2,
    messages.Refused: 3,
    messages.JoinRequest: 4,
    messages.JoinAccepted: 5,
    # Control connections: 16 to 63. Membership and measuring, then the agreement, then requests.
    messages.Heartbeat: 16,
    messages.Gossip: 17,
    messages.ProbeChunk: 18,
    messages.Prepare: 24,
    messages.Promise: 25,
    messages.Start: 26,
    messages.Accept: 27,
    messages.Ack: 28,
    messages.Nack: 29,
    messages.Commit: 30,
    messages.CatchUp: 31,
    messages.Entries: 32,
    messages.NewLineage: 33,
    messages.Broken: 34,
    messages.Propose: 40,
    messages.Declined: 41,
    messages.PrepareJob: 42,
    messages.JobPrepared: 43,
    messages.Evict: 44,
    messages.GetBytes: 48,
    messages.Bytes: 49,
    # Bulk connections: 64 to 79.
    messages.StreamOpen: 64,
    messages.Chunk: 65,
    messages.PartSummary: 66,
    messages.ResultSummary: 67,
}
"""The number of each kind of message. A number is never given to another kind: a message that
goes leaves a gap, one that changes incompatibly takes a new number."""

TYPE_OF: Final[dict[int, type[Record]]] = {kind: of for of, kind in KIND_OF.items()}
assert len(TYPE_OF) == len(KIND_OF)

HANDSHAKE_TYPES: Final[frozenset[type[Record]]] = frozenset(get_args(HandshakeMessage))
CONTROL_TYPES: Final[frozenset[type[Record]]] = frozenset(
    get_args(ControlMessage) + get_args(ContentMessage)
)
BULK_TYPES: Final[frozenset[type[Record]]] = frozenset(get_args(BulkMessage))

TYPES_WITH_BODY: Final[frozenset[type[Record]]] = frozenset(
    {messages.ProbeChunk, messages.Bytes, messages.Chunk}
)

RecordT = TypeVar("RecordT", bound=Record)


def encode(message: Message, body: "bytes | bytearray | memoryview[Any]" = b"") -> bytes:
    """Return prefix and header of a frame without a lineage; the caller sends ``body`` after it.

    The body is not copied: only its size goes into the prefix.
    """
    header = pack(message)
    body_bytes = memoryview(body).nbytes  # len() would count the elements of a float view
    return pack_prefix(KIND_OF[type(message)], len(header), body_bytes) + header


def encode_control(
    lineage: LineageId, message: ControlMessage | ContentMessage, body_bytes: int = 0
) -> bytes:
    """Return prefix and header of a control frame; the caller sends the body after it."""
    header = bytes.fromhex(lineage) + pack(message)
    return pack_prefix(KIND_OF[type(message)], len(header), body_bytes) + header


def decode(
    frame_kind: int, header: bytes | memoryview, expected: Collection[type[RecordT]]
) -> RecordT:
    """Parse the header of a frame whose kind must be one of ``expected``.

    Raises:
        MalformedMessageError: another kind, or the header is not that message; names the type.
    """
    found = TYPE_OF.get(frame_kind)
    if found is None or found not in expected:
        name = f"kind {frame_kind}" if found is None else f"a {found.__name__}"
        wanted = ", ".join(sorted(kind.__name__ for kind in expected))
        raise MalformedMessageError(f"{name} is not taken here, expected one of: {wanted}")
    return unpack(header, cast("type[RecordT]", found))


def decode_control(frame: Frame) -> tuple[LineageId, ControlMessage | ContentMessage]:
    """Parse a control frame: the sender's lineage and the message.

    Raises:
        MalformedMessageError: a kind that does not belong here, a header that is not that
            message, or a body where there is none, or of another size than the message says.
    """
    lineage = LineageId(frame.header[:LINEAGE_BYTES].hex())
    record = decode(frame.kind, memoryview(frame.header)[LINEAGE_BYTES:], CONTROL_TYPES)
    message = cast("ControlMessage | ContentMessage", record)
    _check_body(message, len(frame.body))
    return lineage, message


def _check_body(message: ControlMessage | ContentMessage, body_bytes: int) -> None:
    """Refuse a body of another size than the message allows."""
    least, most = 0, 0
    match message:
        case messages.ProbeChunk(size=size):
            least = most = size
        case messages.Bytes(offset=offset, total=total):
            most = max(total - offset, 0)
        case _:
            pass
    if not least <= body_bytes <= most:
        raise MalformedMessageError(
            f"a {type(message).__name__} came with a body of {body_bytes} bytes, "
            f"{least} to {most} fit what it says"
        )
