"""Handwritten digits: the embedded ones, or a folder with the original MNIST files."""

import hashlib
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from greedw_p2p.data.idx import read_idx
from greedw_p2p.errors import DataSetError
from greedw_p2p.ids import ContentDigest
from greedw_p2p.record import DIGEST_BYTES

CLASSES: Final = 10
SIDE: Final = 28
PIXELS: Final = SIDE * SIDE

_TRAIN_PREFIXES: Final = ("train",)
_HELD_OUT_PREFIXES: Final = ("t10k", "t2k")
"""Looked for in this order: the official test set's name, then that of the embedded set."""

_HINT: Final = (
    "the folder must hold train-images-idx3-ubyte, train-labels-idx1-ubyte,"
    " t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, each plain or with .gz"
)


@dataclass(frozen=True, slots=True)
class Digits:
    """Images, shape (n, 784), and their labels, shape (n,), 0 to 9; both bytes, not writeable."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class DigitSet:
    """What a job trains on, and the held-out digits that it is scored on."""

    train: Digits
    held_out: Digits
    digest: ContentDigest


def load_digits(data_dir: str) -> DigitSet:
    """Read a folder of IDX files, or the embedded digits if ``data_dir`` is empty.

    Raises:
        DataSetError: naming the folder or file, and what to do.
    """
    folder = _folder(data_dir)
    train = _read_part(folder, _TRAIN_PREFIXES)
    held_out = _read_part(folder, _HELD_OUT_PREFIXES)
    return DigitSet(train, held_out, _digest_of(train, held_out))


def _folder(data_dir: str) -> Traversable:
    if not data_dir:
        return resources.files("greedw_p2p.data") / "mnist10k"
    try:
        is_folder, is_there = Path(data_dir).is_dir(), Path(data_dir).exists()
    except (OSError, ValueError) as error:
        raise DataSetError(f"cannot look into the data folder {data_dir!r}: {error}") from error
    if is_there and not is_folder:
        raise DataSetError(f"{data_dir} is a file, not a data folder", hint=_HINT)
    if not is_folder:
        raise DataSetError(f"there is no data folder {data_dir} on this host", hint=_HINT)
    return Path(data_dir)


def _read_part(folder: Traversable, prefixes: tuple[str, ...]) -> Digits:
    images_file = _find(folder, prefixes, "images", "idx3")
    prefix = images_file.name.split("-")[0]
    labels_file = _find(folder, (prefix,), "labels", "idx1")
    images = read_idx(images_file, dimensions=3)
    labels = read_idx(labels_file, dimensions=1)
    if not len(images) or images.shape[1:] != (SIDE, SIDE):
        raise DataSetError(
            f"{images_file} holds {_sizes(images)}, not one or more images of {SIDE} x {SIDE}",
            hint=_HINT,
        )
    if len(images) != len(labels):
        raise DataSetError(
            f"{images_file} holds {len(images)} images, but {labels_file} {len(labels)} labels",
            hint="fetch both files again, from the same place",
        )
    if int(labels.max()) >= CLASSES:
        raise DataSetError(
            f"{labels_file} holds the label {int(labels.max())}; digits are 0 to {CLASSES - 1}",
            hint=_HINT,
        )
    images.setflags(write=False)
    labels.setflags(write=False)
    return Digits(images.reshape(len(images), PIXELS), labels)


def _find(folder: Traversable, prefixes: tuple[str, ...], what: str, form: str) -> Traversable:
    """Return the first regular file of the names that the same content goes by."""
    names = [
        f"{prefix}-{what}{separator}{form}-ubyte{suffix}"
        for prefix in prefixes
        for separator in "-."
        for suffix in ("", ".gz")
    ]
    for name in names:
        file = folder / name
        # A pipe of that name would block whoever opens it; only regular files are looked at.
        if file.is_file():
            return file
    raise DataSetError(f"{folder} has no {names[0]} (nor {', '.join(names[1:])})", hint=_HINT)


def _sizes(images: NDArray[np.uint8]) -> str:
    return " x ".join(str(size) for size in images.shape)


def _digest_of(train: Digits, held_out: Digits) -> ContentDigest:
    """Return a digest of what was decoded: sizes, images and labels of both parts."""
    content = hashlib.blake2b(b"greedw digits 1\0", digest_size=DIGEST_BYTES)
    for part in (train, held_out):
        content.update(len(part).to_bytes(8, "big"))
        content.update(part.images.data)
        content.update(part.labels.data)
    return ContentDigest(content.digest())
