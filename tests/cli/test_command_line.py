import io
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from greedw_cli import exits

Run = Callable[..., Any]

READING = [["status"], ["jobs"], ["topology"]]
CHANGING = [["invite"], ["leave"], ["evict", "lab-1"], ["train", "mnist-2nn"], ["stop"]]
ASKING = [*READING, *CHANGING, ["stop", "job-1"], ["jobs", "--follow"]]


def test_help_documents_every_exit_code_and_command(greedw: Run) -> None:
    answer = greedw("--help")
    assert answer.code == 0
    text = " ".join(answer.out.replace("│", " ").split())
    for code in (0, 1, 2, 3, 4, 5, 6, 7, 130):
        assert f"{code} " in text.partition("Exit codes:")[2]
    commands = (
        "init",
        "invite",
        "join",
        "leave",
        "evict",
        "status",
        "train",
        "jobs",
        "stop",
        "topology",
    )
    for command in (*commands, "demo"):
        assert f" {command} " in text


def test_version_is_the_distribution_s(greedw: Run) -> None:
    answer = greedw("--version")
    assert (answer.code, answer.out) == (0, f"greedw {version('greedw-p2p')}\n")


@pytest.mark.parametrize("command", ASKING, ids=" ".join)
def test_commands_that_need_the_daemon_exit_with_3_and_say_how_to_start_it(
    command: list[str], greedw: Run, tmp_path: Path
) -> None:
    answer = greedw(*command, "--state-dir", tmp_path)
    assert answer.code == exits.NOT_RUNNING
    assert answer.out == ""
    assert "error: " in answer.err
    assert f"greedwd --state-dir {tmp_path}" in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("command", READING, ids=lambda command: str(command[0]))
def test_json_prints_nothing_on_stdout_when_it_fails(
    command: list[str], greedw: Run, tmp_path: Path
) -> None:
    answer = greedw(*command, "--json", "--state-dir", tmp_path)
    assert (answer.code, answer.out) == (exits.NOT_RUNNING, "")


def test_state_dir_is_taken_after_before_and_from_the_environment_in_this_order(
    greedw: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after, before, environment = tmp_path / "after", tmp_path / "before", tmp_path / "environment"
    monkeypatch.setenv("GREEDW_STATE_DIR", str(environment))
    assert str(environment) in greedw("status").err
    assert str(before) in greedw("--state-dir", before, "status").err
    assert str(after) in greedw("--state-dir", before, "status", "--state-dir", after).err


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["status", "--no-such-option"],
        ["train"],
        ["train", "mnist-2nn", "--batch", "0"],
        ["train", "mnist-2nn", "--lr", "0"],
        ["train", "mnist-2nn", "--lr", "nan"],
        ["train", "mnist-2nn", "--lr", "inf"],
        ["train", "mnist-2nn", "--lr", "1.1e5"],
        ["train", "mnist-2nn", "--seed", "-1"],
        ["train", "mnist-2nn", "--seed", str(2**62)],
        ["train", "mnist-2nn", "--data", ""],
        ["train", "mnist-2nn", "--data", __file__],
        ["train", "mnist-2nn", "--momentum", "1"],
        ["invite", "--ttl", "soon"],
        ["invite", "--ttl", "0s"],
        ["invite", "--ttl", "31d"],
        ["evict"],
        ["invite", "--uses", "0"],
        ["join"],
        ["join", "gw1-x", "--token-file", "-"],
        ["join", "--token-file", "/dev/null/token"],
        ["demo", "--nodes", "0"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2_and_prints_no_answer(
    arguments: list[str], greedw: Run, tmp_path: Path
) -> None:
    answer = greedw("--state-dir", tmp_path, *arguments)
    assert (answer.code, answer.out) == (exits.WRONG_USAGE, "")
    assert answer.err


def test_join_reads_the_last_word_of_standard_input(
    greedw: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("what invite said\ngw1-nonsense\n"))
    answer = greedw("join", "--token-file", "-", "--state-dir", tmp_path / "node")
    assert answer.code == exits.REFUSED
    assert "token" in answer.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "mnist-2nn", "--lr", "1e30"], "above 0 and at most 1e5"),
        (["train", "mnist-2nn", "--data", __file__], "is a file"),
        (["invite", "--ttl", "31d"], "from 1s to 30d"),
        (["invite", "--ttl", "0s"], "from 1s to 30d"),
    ],
)
def test_wrong_usage_is_told_in_words(arguments: list[str], words: str, greedw: Run) -> None:
    told = greedw(*arguments).err.replace("│", " ")
    assert words in " ".join(told.split())


@pytest.mark.parametrize("command", ["status", "init", "jobs"])
def test_state_dir_that_is_a_file_is_said_to_be_no_directory(
    command: str, greedw: Run, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.touch()
    answer = greedw(command, "--state-dir", path)
    assert answer.code == exits.WRONG_USAGE
    assert f"{path} is not a directory" in answer.err


def test_training_says_nothing_of_a_start_that_is_refused(greedw: Run, tmp_path: Path) -> None:
    answer = greedw("train", "mnist-2nn", "--state-dir", tmp_path)
    assert answer.err.startswith("error: ")


@pytest.mark.parametrize("content", ["", " \n"], ids=["empty", "blank"])
def test_token_file_that_holds_none_is_named(content: str, greedw: Run, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(content, encoding="utf-8")
    answer = greedw("join", "--token-file", path, "--state-dir", tmp_path / "node")
    assert answer.code == exits.FAILED
    assert "token file" in answer.err


def test_demo_keeps_nothing_in_a_directory_that_is_not_empty(greedw: Run, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    answer = greedw("demo", "--keep", tmp_path)
    assert answer.code == exits.FAILED
    assert "not empty" in answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
