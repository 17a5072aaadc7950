"""Records: the immutable values that nodes exchange, and their one encoding.

A record is written as a msgpack array of its fields in order, so equal records have equal bytes on
every host, and a digest of the bytes identifies the value. Parsing checks every field against its
declared type and bounds.
"""

import hashlib
from typing import Any, Final, TypeVar, cast

import msgpack
import msgspec

from greedw_p2p.errors import MalformedMessageError
from greedw_p2p.limits import MESSAGE_ITEMS_MAX

DIGEST_BYTES: Final = 16


class Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of every value that crosses the wire or is hashed."""


RecordT = TypeVar("RecordT", bound=Record)


def pack(record: Record) -> bytes:
    """Return the record's canonical msgpack bytes."""
    plain = msgspec.to_builtins(record, builtin_types=(bytes,))
    return cast("bytes", msgpack.packb(plain, use_bin_type=True))


def unpack(data: bytes | memoryview, kind: type[RecordT]) -> RecordT:
    """Parse bytes from a peer as a record of the given kind.

    Raises:
        MalformedMessageError: if the bytes are not msgpack, exceed a limit, or do not match the
            record's fields. The parser itself bounds nesting and does not recurse.
    """
    try:
        plain: Any = msgpack.unpackb(
            data,
            raw=False,
            use_list=True,
            strict_map_key=True,
            max_str_len=len(data),
            max_bin_len=len(data),
            max_array_len=min(len(data), MESSAGE_ITEMS_MAX),
            max_map_len=0,
            max_ext_len=0,
        )
        return msgspec.convert(plain, kind, strict=True, builtin_types=(bytes,))
    except (
        ValueError,  # msgpack's format errors and exceeded limits, msgspec's mismatches
        TypeError,
        msgpack.exceptions.UnpackException,
        msgpack.exceptions.ExtraData,
    ) as error:
        raise MalformedMessageError(f"not a {kind.__name__}: {error}") from error


def digest(record: Record) -> bytes:
    """Return the 16-byte BLAKE2b digest of the record's canonical bytes."""
    return hashlib.blake2b(pack(record), digest_size=DIGEST_BYTES).digest()
