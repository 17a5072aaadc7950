"""Real daemons on loopback, and the real command: nothing here stands in for anything."""

import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from greedw_daemon.harness import LocalCluster
from greedw_p2p.data.mnist import SIDE, Digits, load_digits

COMMAND_S: Final = 60.0
SMALL_SAMPLES: Final = 600
SMALL_HELD_OUT: Final = 100


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """Return stdout as the one object that it must be."""
        assert self.code == 0, self
        answer: dict[str, Any] = json.loads(self.out)
        return answer


def _command_of(arguments: tuple[object, ...]) -> list[str]:
    return [sys.executable, "-P", "-m", "greedw_cli", *map(str, arguments)]


@pytest.fixture(scope="session")
def greedw() -> Callable[..., Answer]:
    """Run the command in a process of its own."""

    def run(*arguments: object, given: str = "") -> Answer:
        done = subprocess.run(
            _command_of(arguments),
            input=given,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def start_greedw() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command in a process group of its own, as a shell does."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
        piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process: subprocess.Popen[str] = subprocess.Popen(
            _command_of(arguments), text=True, process_group=0, **(piped | options)
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=10)


@contextlib.contextmanager
def _closing(cluster: LocalCluster) -> Generator[LocalCluster]:
    try:
        yield cluster
    finally:
        sys.stdout.write(cluster.log_tails(40))  # pytest shows it with a failure
        cluster.close()
    assert cluster.left_behind() == []


@pytest.fixture
def prepare() -> Iterator[Callable[..., LocalCluster]]:
    """Prepare clusters; whatever was started is ended, and must leave nothing."""
    with contextlib.ExitStack() as stack:

        def make(*names: str) -> LocalCluster:
            return stack.enter_context(_closing(LocalCluster(names)))

        yield make


@pytest.fixture
def form(prepare: Callable[..., LocalCluster]) -> Callable[..., LocalCluster]:
    """Start daemons and make them one cluster; options are a daemon's environment."""

    def make(*names: str, **environments: dict[str, str]) -> LocalCluster:
        cluster = prepare(*names)
        for name, environment in environments.items():
            cluster.daemons[name].environment.update(environment)
        cluster.start()
        cluster.form()
        return cluster

    return make


@pytest.fixture(scope="module")
def four() -> Iterator[LocalCluster]:
    """Serve a module's tests with one cluster of four, none of which dies."""
    with _closing(LocalCluster(["a", "b", "c", "d"])) as cluster:
        cluster.start()
        cluster.form()
        yield cluster


@pytest.fixture(scope="module")
def pair() -> Iterator[LocalCluster]:
    """Serve a module's tests with one cluster of two, none of which dies."""
    with _closing(LocalCluster(["a", "b"])) as cluster:
        cluster.start()
        cluster.form()
        yield cluster


@pytest.fixture(scope="session")
def write_digits() -> Callable[[Path, int], Path]:
    """Write a folder of IDX files with some of the embedded digits, from ``first`` on."""

    def write(folder: Path, first: int) -> Path:
        embedded = load_digits("")
        folder.mkdir()
        _write_part(folder, "train", embedded.train, first, SMALL_SAMPLES)
        _write_part(folder, "t10k", embedded.held_out, first, SMALL_HELD_OUT)
        return folder

    return write


def _write_part(folder: Path, prefix: str, digits: Digits, first: int, count: int) -> None:
    images = digits.images[first : first + count].tobytes()
    labels = digits.labels[first : first + count].tobytes()
    header = struct.pack(">IIII", 0x803, count, SIDE, SIDE)
    (folder / f"{prefix}-images-idx3-ubyte").write_bytes(header + images)
    (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels)
