import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from greedw_cli.app import main
from greedw_p2p.ids import JobId
from greedw_p2p.node.status import JobStatus


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


@pytest.fixture
def greedw(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Answer]:
    """Run the command as the console script does, within this process."""

    def run(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["greedw", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        code = ended.value.code
        assert code is None or isinstance(code, int)
        return Answer(code or 0, printed.out, printed.err)

    return run


@pytest.fixture
def make_job() -> Callable[..., JobStatus]:
    """Make a job in the middle of its training; keywords say what differs."""
    usual = JobStatus(
        id=JobId("mnist-2nn-3f09ac"),
        kind="mnist-2nn",
        state="running",
        round=1_062,
        rounds=12_500,
        epochs=400,
        batch=256,
        samples=8000,
        held_out=2000,
        loss=0.043,
        accuracy=0.9412,
        accuracy_round=31,
        digests={},
        reason="",
    )

    def make(**changes: Any) -> JobStatus:
        return msgspec.structs.replace(usual, **changes)

    return make
