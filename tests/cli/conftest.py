import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from greedw_cli.app import main


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
