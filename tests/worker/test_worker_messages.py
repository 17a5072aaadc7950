import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedw_daemon.worker import messages as messages
from greedw_p2p.errors import MalformedMessageError
from greedw_p2p.ids import Ballot, ContentDigest, EntryId, EntryIndex, JobId, NodeId, StateDigest
from greedw_p2p.jobs.spec import JobSpec
from greedw_p2p.limits import TEXT_CHARS_MAX

BALLOT = Ballot(3, NodeId("ab" * 16))
SPEC = JobSpec(JobId("j"), "k", "", ContentDigest(b"d" * 16), 10, 2, 1, 4, 0.1, 0.9, 5)
REQUESTS: list[messages.Request] = [
    messages.ProbeData("mnist-2nn", "/données"),
    messages.OpenJob(SPEC, initialise=True),
    messages.DigestState(),
    messages.Compute(EntryIndex(1), BALLOT, 2, 3, 4),
    messages.Evaluate(EntryIndex(1), BALLOT, 3, 4),
    messages.Apply(EntryId(b"e" * 16)),
    messages.Flip(EntryId(b"e" * 16)),
]
REPORTS: list[messages.Report] = [
    messages.Started(),
    messages.StageReached(messages.Stage.COMPILING),
    messages.DataProbed(ContentDigest(b"d" * 16), 10, 2),
    messages.JobOpened((16, 32), 96, StateDigest(b"s" * 16), 25.5),
    messages.StateDigested(StateDigest(b"s" * 16)),
    messages.Refused("no data", "get some"),
    messages.BucketReady(EntryIndex(1), BALLOT, 2),
    messages.Computed(EntryIndex(1), BALLOT, 4, math.inf, 1, 1234),
    messages.Applied(EntryId(b"e" * 16), StateDigest(b"s" * 16)),
    messages.Failed("KeyError: 1", "trace"),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: type(r).__name__)
def test_request_survives_the_socket(request_: messages.Request) -> None:
    assert messages.decode_request(messages.encode(request_)) == request_


@pytest.mark.parametrize("report", REPORTS, ids=lambda r: type(r).__name__)
def test_report_survives_the_socket(report: messages.Report) -> None:
    assert messages.decode_report(messages.encode(report)) == report


def test_a_loss_that_is_no_number_survives_the_socket() -> None:
    report = messages.Computed(EntryIndex(1), BALLOT, 4, math.nan, 1, 1234)
    again = messages.decode_report(messages.encode(report))
    assert isinstance(again, messages.Computed)
    assert math.isnan(again.loss_sum)


def test_a_request_is_no_report_and_the_other_way_round() -> None:
    with pytest.raises(MalformedMessageError):
        messages.decode_report(messages.encode(REQUESTS[3]))
    with pytest.raises(MalformedMessageError):
        messages.decode_request(messages.encode(REPORTS[6]))


@given(garbage=st.binary(max_size=256))
def test_garbage_raises_a_peer_error_or_nothing(garbage: bytes) -> None:
    for decode in (messages.decode_request, messages.decode_report):
        with contextlib.suppress(MalformedMessageError):
            decode(garbage)


@given(text=st.text(st.characters(), max_size=50), copies=st.integers(1, 200))
def test_a_clipped_text_fits_into_a_failure_whatever_is_in_it(text: str, copies: int) -> None:
    clipped = messages.clipped(text * copies)
    assert len(clipped) <= TEXT_CHARS_MAX
    report = messages.Failed(clipped, clipped)
    assert messages.decode_report(messages.encode(report)) == report


def test_clipping_keeps_the_end_of_a_text() -> None:
    assert messages.clipped("x" * TEXT_CHARS_MAX + "the cause").endswith("the cause")
