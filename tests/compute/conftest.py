import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from greedw_p2p.ids import JobId
from greedw_p2p.jobs.registry import DEFAULTS, MNIST_2NN, open_data
from greedw_p2p.jobs.spec import JobSpec


def idx_bytes(values: NDArray[np.uint8]) -> bytes:
    header = bytes((0, 0, 8, values.ndim))
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return header + sizes + values.tobytes()


@dataclass(frozen=True)
class MnistFolder:
    """A small data set on disk, in the form that the original files have."""

    path: Path
    names: tuple[str, str, str, str]
    arrays: tuple[NDArray[np.uint8], ...]

    def file(self, number: int) -> Path:
        return self.path / self.names[number]

    def write(self) -> None:
        for number, values in enumerate(self.arrays):
            content = idx_bytes(values)
            is_compressed = self.names[number].endswith(".gz")
            self.file(number).write_bytes(gzip.compress(content) if is_compressed else content)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    # As in the worker. Threads that spin for work also make a busy host many times slower.
    with threadpool_limits(limits=1):
        yield


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., MnistFolder]:
    def make(held_out: str = "t10k", separator: str = "-", suffix: str = "") -> MnistFolder:
        rng = np.random.default_rng(5)
        names = [
            f"{part}-{what}{separator}{form}-ubyte{suffix}"
            for part in ("train", held_out)
            for what, form in (("images", "idx3"), ("labels", "idx1"))
        ]
        arrays = [
            rng.integers(0, high, shape, dtype=np.uint8)
            for high, shape in ((256, (7, 28, 28)), (10, (7,)), (256, (3, 28, 28)), (10, (3,)))
        ]
        path = tmp_path / f"{held_out}{separator}{suffix}"
        path.mkdir()
        folder = MnistFolder(path, (names[0], names[1], names[2], names[3]), tuple(arrays))
        folder.write()
        return folder

    return make


@pytest.fixture
def make_spec() -> Callable[..., JobSpec]:
    def make(
        data_dir: str = "", epochs: int = 2, batch: int = 256, momentum: float = 0.9
    ) -> JobSpec:
        facts = open_data(MNIST_2NN, data_dir)
        return JobSpec(
            id=JobId("job-1"),
            kind=MNIST_2NN,
            data_dir=data_dir,
            data_digest=facts.digest,
            samples=facts.samples,
            held_out=facts.held_out,
            epochs=epochs,
            batch=batch,
            learning_rate=DEFAULTS[MNIST_2NN].learning_rate,
            momentum=momentum,
            seed=DEFAULTS[MNIST_2NN].seed,
        )

    return make
