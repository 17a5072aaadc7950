import contextlib
import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from greedw_p2p.data.idx import CONTENT_BYTES_MAX, read_idx
from greedw_p2p.errors import DataSetError
from greedw_p2p.limits import MIB

byte_arrays = hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=6))
reuses_the_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def encoded(values: NDArray[np.uint8]) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes((0, 0, 8, values.ndim)) + sizes + values.tobytes()


@reuses_the_folder
@given(values=byte_arrays, is_compressed=st.booleans())
def test_reading_yields_what_was_written(
    tmp_path: Path, values: NDArray[np.uint8], is_compressed: bool
) -> None:
    file = tmp_path / "content"
    file.write_bytes(gzip.compress(encoded(values)) if is_compressed else encoded(values))
    read = read_idx(file, values.ndim)
    assert read.shape == values.shape
    assert read.tobytes() == values.tobytes()


@reuses_the_folder
@given(values=byte_arrays, is_compressed=st.booleans(), data=st.data())
def test_a_truncated_file_is_refused_by_name_wherever_it_is_cut(
    tmp_path: Path, values: NDArray[np.uint8], is_compressed: bool, data: st.DataObject
) -> None:
    whole = gzip.compress(encoded(values)) if is_compressed else encoded(values)
    file = tmp_path / "cut-short"
    file.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(DataSetError, match="cut-short"):
        read_idx(file, values.ndim)


@reuses_the_folder
@given(garbage=st.binary(max_size=200), is_marked_as_gzip=st.booleans())
def test_garbage_is_refused_or_read_but_nothing_else_happens(
    tmp_path: Path, garbage: bytes, is_marked_as_gzip: bool
) -> None:
    file = tmp_path / "garbage"
    file.write_bytes((b"\x1f\x8b\x08" if is_marked_as_gzip else b"") + garbage)
    with contextlib.suppress(DataSetError):
        assert read_idx(file, 1).nbytes <= len(garbage) * 1032


def test_a_file_of_another_kind_is_told_by_its_magic_number(tmp_path: Path) -> None:
    file = tmp_path / "labels"
    file.write_bytes(encoded(np.zeros((2, 3, 4), np.uint8)))
    with pytest.raises(DataSetError, match=r"starts with 0x00000803.* 0x00000801"):
        read_idx(file, 1)


def test_a_file_that_goes_on_after_its_content_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "long"
    file.write_bytes(encoded(np.zeros(5, np.uint8)) + b"x")
    with pytest.raises(DataSetError, match="goes on after the 5 bytes"):
        read_idx(file, 1)


@pytest.mark.parametrize("sizes", [(2**32 - 1,), (2**32 - 1, 2**32 - 1, 2**32 - 1), (900 * MIB,)])
@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_lying_header_allocates_nothing(
    tmp_path: Path, sizes: tuple[int, ...], is_compressed: bool
) -> None:
    content = bytes((0, 0, 8, len(sizes))) + b"".join(size.to_bytes(4, "big") for size in sizes)
    file = tmp_path / "lie"
    file.write_bytes(gzip.compress(content) if is_compressed else content)
    tracemalloc.start()
    try:
        with pytest.raises(DataSetError, match=r"announces \d+ bytes"):
            read_idx(file, len(sizes))
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_a_gzip_bomb_is_expanded_no_further_than_its_header_says(tmp_path: Path) -> None:
    file = tmp_path / "bomb"
    with gzip.open(file, "wb") as bomb:
        bomb.write(encoded(np.zeros(10, np.uint8)))
        for _ in range(64):
            bomb.write(bytes(MIB))
    tracemalloc.start()
    try:
        with pytest.raises(DataSetError, match="goes on after the 10 bytes"):
            read_idx(file, 1)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


def test_content_over_the_limit_is_refused_although_the_file_is_large_enough(
    tmp_path: Path,
) -> None:
    file = tmp_path / "huge"
    elements = CONTENT_BYTES_MAX + 1
    with file.open("wb") as sparse:
        sparse.write(bytes((0, 0, 8, 1)) + elements.to_bytes(4, "big"))
        sparse.truncate(8 + elements)
    with pytest.raises(DataSetError, match="limit"):
        read_idx(file, 1)


def test_a_missing_file_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(DataSetError, match="nowhere: No such file"):
        read_idx(tmp_path / "nowhere", 1)
