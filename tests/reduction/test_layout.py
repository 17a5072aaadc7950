from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedw_p2p.reduction.layout import ALIGNMENT, BucketLayout

layouts = st.builds(
    BucketLayout,
    st.lists(st.integers(1, 20).map(lambda n: n * ALIGNMENT), max_size=6).map(tuple),
)


@given(layout=layouts, chunk_bytes=st.integers(4, 700))
def test_chunks_cover_every_bucket_in_order_and_never_straddle(
    layout: BucketLayout, chunk_bytes: int
) -> None:
    spans = layout.chunks(chunk_bytes)
    at = 0
    for index, span in enumerate(spans):
        assert span.index == index
        assert span.start == at
        assert 0 < span.nbytes <= chunk_bytes
        begin = layout.offset_of(span.bucket)
        assert begin <= span.start < span.stop <= begin + layout.buckets[span.bucket]
        assert span.number == sum(1 for other in spans[:index] if other.bucket == span.bucket)
        at = span.stop
    assert at == layout.elements == layout.nbytes // 4


@given(layout=layouts, chunk_bytes=st.integers(4, 700))
def test_only_the_last_chunk_of_a_bucket_is_shorter(layout: BucketLayout, chunk_bytes: int) -> None:
    spans = layout.chunks(chunk_bytes)
    for span, following in pairwise(spans):
        if span.bucket == following.bucket:
            assert span.nbytes == chunk_bytes // 4 * 4


def test_an_empty_layout_has_no_chunks() -> None:
    assert BucketLayout(()).chunks(16384) == ()
    assert BucketLayout(()).nbytes == 0


@pytest.mark.parametrize("elements", [0, -16, 15, 17])
def test_a_bucket_off_the_alignment_is_refused(elements: int) -> None:
    with pytest.raises(ValueError, match="bucket 1 has"):
        BucketLayout((16, elements))


def test_a_chunk_without_a_whole_element_is_refused() -> None:
    with pytest.raises(ValueError, match="3 bytes"):
        BucketLayout((16,)).chunks(3)
