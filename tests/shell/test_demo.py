"""The first command that a newcomer runs."""

import json
import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from greedw_daemon.harness import TAG_VARIABLE

DEMO_S: Final = 60.0

Run = Callable[..., Any]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the demo a directory of its own for what is temporary."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


def strays(temporary: Path) -> list[str]:
    """Return what still runs of the demo that had this directory, and what it left there."""
    found = [path.name for path in temporary.iterdir()]
    marker = f"TMPDIR={temporary}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            content = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if marker in content and any(c.startswith(TAG_VARIABLE.encode()) for c in content):
            found.append(f"process {path.parent.name}")
    return found


def test_demo_trains_and_answers_with_one_object(temporary: Path, greedw: Run) -> None:
    answer = greedw("demo", "--nodes", 2, "--epochs", 2, "--json").json()
    assert answer["schema"] == 1
    assert answer["nodes"] == 2
    assert answer["model"] == "mnist-2nn"
    assert answer["rounds"] == 2 * 32
    assert answer["accuracy"] > 0.85
    assert answer["replicas_identical"] is True
    assert set(answer["state_digests"]) == {"lab-0", "lab-1"}
    assert len(set(answer["state_digests"].values())) == 1
    assert answer["round_ms_median"] > 0
    assert sum(answer["shares"].values()) == 256
    assert set(answer["tree"]) == {"lab-0", "lab-1"}
    assert [node for node, parent in answer["tree"].items() if parent is None]
    assert all(sent > 0 for sent in answer["sent_bytes"].values())
    assert strays(temporary) == []


def test_demo_tells_people_what_came_of_it(temporary: Path, greedw: Run) -> None:
    answer = greedw("demo", "--nodes", 1, "--epochs", 1)
    assert answer.code == 0, answer
    assert re.search(r"accuracy \d+\.\d % on 2,000 held-out digits \(not the official", answer.out)
    assert "\nNothing was left behind.\n" in answer.out
    assert "rounds/s" in answer.out
    assert "batch 256, 1 epoch\n" in answer.out
    assert "hardly learned" not in answer.out
    assert strays(temporary) == []


def test_demo_that_hardly_learned_says_so_and_what_to_try(greedw: Run) -> None:
    answer = greedw("demo", "--nodes", 1, "--epochs", 1, "--batch", 8000)
    assert answer.code == 0, answer
    assert "has diverged or hardly learned" in answer.out
    assert "--epochs" in answer.out


def until_it_trains(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    seen = ""
    while "round " not in seen:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    return seen


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_in_the_middle_of_the_demo_leaves_nothing(
    number: signal.Signals, code: int, temporary: Path, start_greedw: Start
) -> None:
    process = start_greedw("demo", "--nodes", 2, "--epochs", 1000)
    until_it_trains(process)
    assert strays(temporary)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert "Nothing was left behind." in err
    assert "Traceback" not in err
    assert strays(temporary) == []


def test_ctrl_c_on_a_terminal_ends_the_live_table_and_leaves_nothing(
    temporary: Path, start_greedw: Start
) -> None:
    ours, theirs = pty.openpty()
    try:
        process = start_greedw(
            "demo",
            "--nodes",
            2,
            "--epochs",
            1000,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
        )
        os.close(theirs)
        screen = read_until(ours, "transfer")
        os.killpg(process.pid, signal.SIGINT)
        screen += read_until(ours, "Nothing was left behind.")
        assert process.wait(20) == 130
    finally:
        os.close(ours)
    assert "round" in screen
    assert "Traceback" not in screen
    assert strays(temporary) == []


def read_until(descriptor: int, text: str) -> str:
    deadline_s = time.monotonic() + DEMO_S
    seen = ""
    while text not in seen:
        assert time.monotonic() < deadline_s, seen
        seen += os.read(descriptor, 65_536).decode(errors="replace")
    return seen


def test_impatient_second_ctrl_c_still_cleans_up(temporary: Path, start_greedw: Start) -> None:
    process = start_greedw("demo", "--nodes", 1, "--epochs", 1000)
    until_it_trains(process)
    for _ in range(3):
        os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert strays(temporary) == []


def test_demo_keeps_state_and_logs_where_it_was_told(
    temporary: Path, greedw: Run, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    answer = greedw("demo", "--nodes", 1, "--epochs", 1, "--keep", kept, "--json")
    assert json.loads(answer.out)["rounds"] == 32
    assert (kept / "lab-0.log").stat().st_size > 0
    assert (kept / "lab-0").is_dir()
    assert strays(temporary) == []


@pytest.mark.parametrize(
    ("stage", "victim"),
    [
        ("Starting", "lab-1"),
        ("Forming", "lab-0"),
        ("Forming", "lab-1"),
        ("Loading", "lab-0"),
        ("Loading", "lab-1"),
        ("Training", "lab-0"),
    ],
)
def test_daemon_that_dies_early_is_named_with_its_signal_at_once(
    stage: str, victim: str, temporary: Path, start_greedw: Start
) -> None:
    process = start_greedw("demo", "--nodes", 2, "--epochs", 1000)
    read_stage(process, stage)
    os.kill(process_of_daemon(victim, temporary), signal.SIGKILL)
    begin_s = time.monotonic()
    _, err = process.communicate(timeout=20)
    assert time.monotonic() - begin_s < 10
    assert process.returncode == 1
    assert f"error: {victim} was ended by SIGKILL while waiting for " in err
    assert "greedw demo --keep DIR" in err
    assert "greedw status" not in err
    assert "start it" not in err
    assert len(err.splitlines()) <= 14
    assert strays(temporary) == []


def read_stage(process: subprocess.Popen[str], stage: str) -> None:
    assert process.stdout is not None
    seen = ""
    while stage not in seen:
        some = os.read(process.stdout.fileno(), 4096).decode()
        assert some, seen
        seen += some


def process_of_daemon(name: str, temporary: Path) -> int:
    """Wait for the daemon of the demo with this directory; workers have another command line."""
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
            except OSError:
                continue
            in_place = any(word.startswith(bytes(temporary)) for word in words)
            if in_place and name.encode() in words:
                return int(path.parent.name)
    raise AssertionError(f"{name} was not started")
