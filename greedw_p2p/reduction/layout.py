"""How a gradient is cut: one flat float32 vector, in buckets, in chunks.

A bucket is what backward finishes at once, and buckets follow one another in the order in which
it does. A chunk is the slice that travels and is summed as one. Chunks never straddle buckets: a
chunk can leave as soon as its bucket is ready, whatever comes after it.
"""

from dataclasses import dataclass
from typing import Final

ELEMENT_BYTES: Final = 4
"""Bytes of a float32."""

ALIGNMENT: Final = 16
"""Elements: every bucket is a multiple of it, so that each starts on a cache line of its own."""


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """A chunk: its index among all, its bucket, its number in there, its elements [start, stop)."""

    index: int
    bucket: int
    number: int
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Bytes of the chunk on the wire."""
        return (self.stop - self.start) * ELEMENT_BYTES


@dataclass(frozen=True, slots=True)
class BucketLayout:
    """The float32 elements of each bucket, in backward order; empty where nothing is summed."""

    buckets: tuple[int, ...]

    def __post_init__(self) -> None:
        for number, elements in enumerate(self.buckets):
            if elements <= 0 or elements % ALIGNMENT:
                raise ValueError(
                    f"bucket {number} has {elements} elements, not a multiple of {ALIGNMENT} from"
                    f" {ALIGNMENT} up"
                )

    @property
    def elements(self) -> int:
        """Elements of the flat vector."""
        return sum(self.buckets)

    @property
    def nbytes(self) -> int:
        """Bytes of the flat vector."""
        return self.elements * ELEMENT_BYTES

    def offset_of(self, bucket: int) -> int:
        """Return the first element of ``bucket`` within the flat vector."""
        return sum(self.buckets[:bucket])

    def chunks(self, chunk_bytes: int) -> tuple[ChunkSpan, ...]:
        """Return all chunks in order, of ``chunk_bytes`` each but for the last of a bucket.

        Raises:
            ValueError: if a chunk would hold no whole element.
        """
        step = chunk_bytes // ELEMENT_BYTES
        if step < 1:
            raise ValueError(f"a chunk of {chunk_bytes} bytes holds no float32")
        spans: list[ChunkSpan] = []
        start = 0
        for bucket, elements in enumerate(self.buckets):
            stop = start + elements
            for number, first in enumerate(range(start, stop, step)):
                span = ChunkSpan(len(spans), bucket, number, first, min(first + step, stop))
                spans.append(span)
            start = stop
        return tuple(spans)
