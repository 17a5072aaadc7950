import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from greedw_p2p.data.mnist import load_digits
from greedw_p2p.errors import DataSetError

from .conftest import MnistFolder

MakeFolder = Callable[..., MnistFolder]


def test_the_embedded_digits_are_the_ones_that_were_published() -> None:
    digits = load_digits("")
    assert (len(digits.train), len(digits.held_out)) == (8000, 2000)
    assert digits.digest.hex() == "255696d4e640525275bca02dd77de940"
    labels = np.concatenate([digits.train.labels, digits.held_out.labels])
    counts = [1001, 1127, 991, 1032, 980, 863, 1014, 1070, 944, 978]
    assert np.bincount(labels).tolist() == counts


def test_the_embedded_digits_share_no_image_between_their_parts() -> None:
    digits = load_digits("")
    trained_on = {image.tobytes() for image in digits.train.images}
    assert not any(image.tobytes() in trained_on for image in digits.held_out.images)


@pytest.mark.parametrize("held_out", ["t10k", "t2k"])
@pytest.mark.parametrize("separator", ["-", "."])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_folder_is_read_under_every_name_that_is_in_use(
    make_folder: MakeFolder, held_out: str, separator: str, suffix: str
) -> None:
    folder = make_folder(held_out, separator, suffix)
    digits = load_digits(str(folder.path))
    assert digits.train.images.tobytes() == folder.arrays[0].tobytes()
    assert digits.train.labels.tobytes() == folder.arrays[1].tobytes()
    assert digits.held_out.images.tobytes() == folder.arrays[2].tobytes()
    assert digits.held_out.labels.tobytes() == folder.arrays[3].tobytes()


def test_the_digest_does_not_depend_on_names_or_compression(make_folder: MakeFolder) -> None:
    plain, packed = make_folder("t10k", "-", ""), make_folder("t2k", ".", ".gz")
    assert load_digits(str(plain.path)).digest == load_digits(str(packed.path)).digest


@pytest.mark.parametrize("number", range(4))
def test_the_digest_changes_with_one_byte_of_any_file(make_folder: MakeFolder, number: int) -> None:
    folder = make_folder()
    before = load_digits(str(folder.path)).digest
    folder.arrays[number].flat[-1] ^= 1
    folder.write()
    assert load_digits(str(folder.path)).digest != before


def test_the_digest_tells_a_sample_moved_between_the_parts(make_folder: MakeFolder) -> None:
    folder = make_folder()
    before = load_digits(str(folder.path)).digest
    images, labels = (np.concatenate(folder.arrays[first::2]) for first in (0, 1))
    moved = (images[:6], labels[:6], images[6:], labels[6:])
    replace(folder, arrays=moved).write()
    assert load_digits(str(folder.path)).digest != before


@pytest.mark.parametrize("number", range(4))
def test_a_missing_file_is_named_with_what_the_folder_must_hold(
    make_folder: MakeFolder, number: int
) -> None:
    folder = make_folder()
    folder.file(number).unlink()
    with pytest.raises(DataSetError, match=f"{folder.path} has no {folder.names[number]}") as error:
        load_digits(str(folder.path))
    assert "train-images-idx3-ubyte" in error.value.hint


def test_a_pipe_in_place_of_a_file_is_not_waited_for(make_folder: MakeFolder) -> None:
    folder = make_folder()
    folder.file(0).unlink()
    os.mkfifo(folder.file(0))
    with pytest.raises(DataSetError, match="has no train-images"):
        load_digits(str(folder.path))


@pytest.mark.parametrize("name", ["nowhere", "file", "x" * 5000, "nul\0byte"])
def test_a_data_folder_that_is_none_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataSetError, match="data folder"):
        load_digits(str(tmp_path / name))


def test_images_and_labels_must_be_of_one_count(make_folder: MakeFolder) -> None:
    folder = make_folder()
    images, labels, *rest = folder.arrays
    replace(folder, arrays=(images, labels[:-1], *rest)).write()
    with pytest.raises(DataSetError, match=r"train-images.* 7 images.*train-labels.* 6 labels"):
        load_digits(str(folder.path))


@pytest.mark.parametrize("shape", [(7, 28, 27), (7, 14, 14), (0, 28, 28)])
def test_images_of_another_size_or_none_are_refused(
    make_folder: MakeFolder, shape: tuple[int, ...]
) -> None:
    folder = make_folder()
    images = np.zeros(shape, np.uint8)
    replace(folder, arrays=(images, *folder.arrays[1:])).write()
    with pytest.raises(DataSetError, match=r"train-images.* not one or more images of 28 x 28"):
        load_digits(str(folder.path))


def test_a_label_that_is_no_digit_is_refused(make_folder: MakeFolder) -> None:
    folder = make_folder()
    folder.arrays[3][1] = 10
    folder.write()
    with pytest.raises(DataSetError, match=r"t10k-labels.* the label 10"):
        load_digits(str(folder.path))


def test_loaded_digits_cannot_be_written(make_folder: MakeFolder) -> None:
    digits = load_digits(str(make_folder().path))
    with pytest.raises(ValueError, match="read-only"):
        digits.train.images[0, 0] = 1


def test_data_folder_that_is_a_file_is_named_as_such(tmp_path: Path) -> None:
    file = tmp_path / "train-images-idx3-ubyte"
    file.touch()
    with pytest.raises(DataSetError, match=f"{file} is a file, not a data folder"):
        load_digits(str(file))
