"""What the daemon and its worker process say to each other.

The channel is a socket pair of sequenced packets: the kernel keeps the boundaries of messages, so
that one message is one system call, none is ever half there when a process dies, and no framing is
needed. Gradients and state never travel here; they are in shared memory.

Requests are carried out one after the other, in order. Of the reports, ``DataProbed``,
``JobOpened``, ``StateDigested`` and ``Refused`` answer the oldest request that waits for one;
``Failed`` is the last word of a worker.
"""

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from greedw_p2p.errors import MalformedMessageError
from greedw_p2p.ids import (
    Ballot,
    ContentDigestField,
    Counter,
    EntryIdField,
    EntryIndexField,
    StateDigestField,
)
from greedw_p2p.jobs.spec import JobSpec, Text
from greedw_p2p.limits import KIB, TEXT_CHARS_MAX
from greedw_p2p.record import Record

PACKET_BYTES_MAX: Final = 64 * KIB
"""Largest message; two texts of the greatest length in UTF-8 fit."""

assert PACKET_BYTES_MAX > 2 * 4 * TEXT_CHARS_MAX


class Stage(StrEnum):
    """How far a worker is with a job."""

    LOADING = "loading"
    COMPILING = "compiling"
    READY = "ready"


# -- requests ---------------------------------------------------------------------------------


class ProbeData(Record, frozen=True, tag="probe-data"):
    """Asks which data set is in a folder; answered by DataProbed or Refused."""

    kind: Text
    data_dir: Text


class OpenJob(Record, frozen=True, tag="open-job"):
    """Asks to load and compile a job, and to write its initial state if ``initialise``.

    Answered by JobOpened or Refused.
    """

    spec: JobSpec
    initialise: bool


class DigestState(Record, frozen=True, tag="digest-state"):
    """Asks for the digest of the current copy of the state; answered by StateDigested."""


class Compute(Record, frozen=True, tag="compute"):
    """Asks for the gradient of a share; answered by BucketReady for each bucket and Computed."""

    index: EntryIndexField
    ballot: Ballot
    round_number: Counter
    start: Counter
    count: Counter


class Evaluate(Record, frozen=True, tag="evaluate"):
    """Asks to score held-out samples; answered by Computed."""

    index: EntryIndexField
    ballot: Ballot
    start: Counter
    count: Counter


class Apply(Record, frozen=True, tag="apply"):
    """Asks for the state after ``entry_id`` in the other copy; answered by Applied."""

    entry_id: EntryIdField


class Flip(Record, frozen=True, tag="flip"):
    """Makes the copy that holds the state after ``entry_id`` the current one. No answer."""

    entry_id: EntryIdField


Request = ProbeData | OpenJob | DigestState | Compute | Evaluate | Apply | Flip

# -- reports ----------------------------------------------------------------------------------


class Started(Record, frozen=True, tag="started"):
    """The process runs and takes requests."""


class StageReached(Record, frozen=True, tag="stage-reached"):
    """The job came a stage further."""

    stage: Stage


class DataProbed(Record, frozen=True, tag="data-probed"):
    """Which data set it is."""

    digest: ContentDigestField
    samples: Counter
    held_out: Counter


class JobOpened(Record, frozen=True, tag="job-opened"):
    """The job can compute; its memory is allocated for this layout.

    ``state`` is the digest of the initial state, empty where none was asked for; ``fixed_units``
    what a computation costs before its first sample, in samples (``calibration``).
    """

    buckets: tuple[Annotated[int, msgspec.Meta(ge=1, lt=2**40)], ...]
    state_bytes: Counter
    state: StateDigestField
    fixed_units: Annotated[float, msgspec.Meta(ge=0)]


class StateDigested(Record, frozen=True, tag="state-digested"):
    """The digest of the current copy of the state."""

    state: StateDigestField


class Refused(Record, frozen=True, tag="refused"):
    """The data set cannot be used; the worker goes on."""

    message: Text
    hint: Text


class BucketReady(Record, frozen=True, tag="bucket-ready"):
    """A bucket of ``own`` is final."""

    index: EntryIndexField
    ballot: Ballot
    bucket: Counter


class Computed(Record, frozen=True, tag="computed"):
    """A share is done, with its figures and how long it took."""

    index: EntryIndexField
    ballot: Ballot
    samples: Counter
    loss_sum: float
    correct: Counter
    compute_us: Counter


class Applied(Record, frozen=True, tag="applied"):
    """The other copy holds the state after ``entry_id``, with this digest."""

    entry_id: EntryIdField
    state: StateDigestField


class Failed(Record, frozen=True, tag="failed"):
    """Something was raised; the process ends. ``detail`` has the end of the traceback."""

    message: Text
    detail: Text


Report = (
    Started
    | StageReached
    | DataProbed
    | JobOpened
    | StateDigested
    | Refused
    | BucketReady
    | Computed
    | Applied
    | Failed
)

# -- bytes ------------------------------------------------------------------------------------

_ENCODER: Final = msgspec.msgpack.Encoder()
_REQUESTS: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(Request)
_REPORTS: Final[msgspec.msgpack.Decoder[Report]] = msgspec.msgpack.Decoder(Report)


def encode(message: Request | Report) -> bytes:
    """Return the message as one packet."""
    packet = _ENCODER.encode(message)
    assert len(packet) <= PACKET_BYTES_MAX
    return packet


def decode_request(packet: bytes) -> Request:
    """Parse a packet from the daemon.

    Raises:
        MalformedMessageError: if it is no request.
    """
    try:
        return _REQUESTS.decode(packet)
    except msgspec.DecodeError as error:
        raise MalformedMessageError(f"not a request to a worker: {error}") from error


def decode_report(packet: bytes) -> Report:
    """Parse a packet from the worker.

    Raises:
        MalformedMessageError: if it is no report.
    """
    try:
        return _REPORTS.decode(packet)
    except msgspec.DecodeError as error:
        raise MalformedMessageError(f"not a report of a worker: {error}") from error


def clipped(text: str) -> str:
    """Return the end of a text that may be too long to travel: the last lines say most.

    Paths that are no UTF-8 come with lone surrogates, which no message can carry.
    """
    return text[-TEXT_CHARS_MAX:].encode(errors="replace").decode()
