"""Records: the immutable values that nodes exchange, and their one encoding.

A record is written as a msgpack array of its fields in order, so equal records have equal bytes on
every host, and a digest of the bytes identifies the value. Parsing checks every field against its
declared type and bounds.
"""

import hashlib
from collections.abc import Callable
from typing import Final, TypeVar, cast

import msgpack
import msgspec

from greedw_p2p.errors import MalformedMessageError

DIGEST_BYTES: Final = 16

# msgpack has no type hints.
_packb: Final = cast("Callable[[object], bytes]", msgpack.packb)  # pyright: ignore[reportUnknownMemberType]


class Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of every value that crosses the wire or is hashed."""


RecordT = TypeVar("RecordT", bound=Record)


def pack(record: Record) -> bytes:
    """Return the record's canonical bytes, as msgpack's reference implementation writes them."""
    return _packb(msgspec.to_builtins(record, builtin_types=(bytes,)))


def unpack(data: bytes | memoryview, kind: type[RecordT]) -> RecordT:
    """Parse bytes from a peer as a record of the given kind.

    The bytes are parsed against the declared fields, never into a generic tree first: what does
    not fit is refused where it stands, so nesting is as deep as the types nest, and memory grows
    with the bytes and not with the lengths they announce. That is why msgspec reads what msgpack
    wrote: a generic parse of 64 KiB of nested array headers took 80 MB.

    Raises:
        MalformedMessageError: if the bytes are not msgpack, or do not match the record's fields
            and their bounds.
    """
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.DecodeError as error:  # malformed msgpack, and its subclass for mismatches
        raise MalformedMessageError(f"not a {kind.__name__}: {error}") from error


def digest(record: Record) -> bytes:
    """Return the 16-byte BLAKE2b digest of the record's canonical bytes."""
    return hashlib.blake2b(pack(record), digest_size=DIGEST_BYTES).digest()
