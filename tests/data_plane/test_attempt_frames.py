from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from greedw_daemon.data_plane.frames import LINK_CELLS_MAX, AttemptFrames
from greedw_daemon.data_plane.order import AttemptOrder
from greedw_p2p.ids import Ballot, EntryIndex, Incarnation, LineageId, MemberId, NodeId
from greedw_p2p.limits import BULK_HEADER_BYTES_MAX, MEMBERS_MAX
from greedw_p2p.links.cell import CODE_MAX, LinkCell
from greedw_p2p.reduction.attempt import Figures, Part, UnitRange
from greedw_p2p.reduction.layout import BucketLayout, ChunkSpan
from greedw_p2p.view import RoundReport
from greedw_p2p.wire.codec import encode
from greedw_p2p.wire.messages import Chunk

numbers = st.integers(0, 2**40)


def member(number: int) -> MemberId:
    return MemberId(NodeId(f"{number:032x}"), Incarnation(2**61))


ORDER = AttemptOrder(
    lineage=LineageId("ab" * 16),
    index=EntryIndex(1),
    ballot=Ballot(0, member(0).node),
    tree=0,
    view_digest=b"v" * 16,
    plan_digest=b"p" * 16,
    me=member(0),
    parent=None,
    children=(),
    layout=BucketLayout(()),
    chunk_bytes=1024,
    window_chunks=1,
    send_buffer_bytes=0,
    divisor=1,
    total_units=1,
    participants=(member(0),),
)


@given(index=numbers, ballot=numbers, bucket=numbers, number=numbers, elements=numbers)
def test_head_of_a_chunk_is_the_codec_s_for_numbers_of_every_length(
    index: int, ballot: int, bucket: int, number: int, elements: int
) -> None:
    elements %= 1 << 16
    order = replace(ORDER, index=EntryIndex(index), ballot=Ballot(ballot, member(0).node))
    span = ChunkSpan(0, bucket, number, 0, elements)
    message = Chunk(order.lineage, order.index, order.ballot, 0, bucket, number)
    assert AttemptFrames(order, [span]).chunk(span) == encode(message, bytes(4 * elements))


def test_summary_of_the_largest_cluster_with_all_it_may_carry_fits_into_a_header() -> None:
    everybody = tuple(member(number) for number in range(MEMBERS_MAX))
    frames = AttemptFrames(replace(ORDER, participants=everybody), [])
    most = 2**62 - 1
    frames.carry([RoundReport(m.node, *[most] * 6) for m in everybody], [])
    cells = [
        LinkCell(m.node, everybody[0].node, Incarnation(most), version, CODE_MAX, CODE_MAX)
        for m in everybody
        for version in range(most - 11, most + 1)
    ]
    frames.carry([], cells)
    part = Part(tuple(UnitRange(m, most, most) for m in everybody), Figures(most, 0.1, most))
    summary = frames.part_summary(part)
    assert len(summary.links) == LINK_CELLS_MAX
    assert len(encode(summary)) <= BULK_HEADER_BYTES_MAX


def test_what_does_not_come_from_a_participant_is_not_carried() -> None:
    frames = AttemptFrames(ORDER, [])
    stranger = member(7).node
    frames.carry(
        [RoundReport(stranger, 1, 2, 3, 4, 5, 6)],
        [LinkCell(stranger, member(0).node, Incarnation(1), 1, 2, 3)],
    )
    summary = frames.part_summary(Part((), Figures(0, 0.0, 0)))
    assert (summary.reports, summary.links) == ((), ())
