"""Reader of IDX, the format of the MNIST files: a magic number, sizes, then raw bytes.

Everything a file announces is checked against its size on disk before memory is allocated, and a
compressed file is never expanded beyond what it announced.
"""

import gzip
import math
import os
import zlib
from importlib.resources.abc import Traversable
from typing import IO, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from greedw_p2p.errors import DataSetError
from greedw_p2p.limits import MIB

CONTENT_BYTES_MAX: Final = 1024 * MIB
"""Largest decoded file. All 70,000 MNIST digits take 52 MiB, the 814,255 of EMNIST 609 MiB."""

_DEFLATE_RATIO_MAX: Final = 1032
"""Deflate cannot expand a byte to more: a larger claim is false before anything is read."""

_UNSIGNED_BYTE: Final = 0x08
_GZIP_MAGIC: Final = b"\x1f\x8b"


class _Content(Protocol):
    """A stream of decoded bytes; a short read means its end."""

    def read(self, size: int, /) -> bytes: ...


def read_idx(file: Traversable, dimensions: int) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes with the given number of dimensions, gzip or plain.

    Whether it is compressed is told from its first bytes, not from its name.

    Raises:
        DataSetError: naming the file, if it cannot be read, is not such a file, or is truncated
            or longer than it says.
    """
    try:
        with file.open("rb") as raw:
            return _read_open(file, raw, dimensions)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _malformed(file, f"its gzip stream is broken: {error}") from error
    except OSError as error:
        raise DataSetError(
            f"cannot read {file}: {error.strerror or error}",
            hint="check that the file exists and that the daemon's user may read it",
        ) from error


def _read_open(file: Traversable, raw: IO[bytes], dimensions: int) -> NDArray[np.uint8]:
    size = raw.seek(0, os.SEEK_END)
    raw.seek(0)
    is_compressed = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    raw.seek(0)
    if not is_compressed:
        return _read_content(file, raw, dimensions, size)
    with gzip.GzipFile(fileobj=raw, mode="rb") as expanded:
        return _read_content(file, expanded, dimensions, size * _DEFLATE_RATIO_MAX)


def _read_content(
    file: Traversable, content: _Content, dimensions: int, available: int
) -> NDArray[np.uint8]:
    """Read header and body; ``available`` bounds the bytes that the content can have at all."""
    shape = _read_header(file, content, dimensions)
    body_bytes = math.prod(shape)
    if body_bytes > CONTENT_BYTES_MAX:
        raise _malformed(file, f"it announces {body_bytes} bytes, limit {CONTENT_BYTES_MAX}")
    if body_bytes > available:
        raise _malformed(file, f"it is truncated: it announces {body_bytes} bytes of content")
    values = np.empty(body_bytes, dtype=np.uint8)
    read_bytes = _read_into(content, values.data)
    if read_bytes < body_bytes:
        raise _malformed(
            file, f"it is truncated: {read_bytes} of {body_bytes} announced bytes are there"
        )
    if content.read(1):
        raise _malformed(file, f"it goes on after the {body_bytes} bytes that it announces")
    return values.reshape(shape)


def _read_header(file: Traversable, content: _Content, dimensions: int) -> tuple[int, ...]:
    """Return the announced shape."""
    header_bytes = 4 * (1 + dimensions)
    header = content.read(header_bytes)
    if len(header) < header_bytes:
        raise _malformed(
            file, f"it is truncated: its header has {len(header)} bytes, not {header_bytes}"
        )
    magic, expected = header[:4].hex(), bytes((0, 0, _UNSIGNED_BYTE, dimensions)).hex()
    if magic != expected:
        raise _malformed(file, f"it starts with 0x{magic}, an IDX file of this kind 0x{expected}")
    return tuple(
        int.from_bytes(header[4 * axis : 4 * axis + 4], "big") for axis in range(1, dimensions + 1)
    )


def _read_into(content: _Content, target: memoryview) -> int:
    """Fill ``target`` as far as the content goes; return the number of bytes."""
    filled = 0
    while filled < len(target):
        piece = content.read(min(MIB, len(target) - filled))
        if not piece:
            break
        target[filled : filled + len(piece)] = piece
        filled += len(piece)
    return filled


def _malformed(file: Traversable, what: str) -> DataSetError:
    return DataSetError(
        f"{file} cannot be used: {what}", hint="fetch the file again; it must be an IDX file"
    )
