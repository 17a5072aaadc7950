"""The entry point of ``greedw``. It loads the commands late, so that Ctrl-C is never loud."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

_INTERRUPTED = 130


def main() -> None:
    """Run one command and exit with its code; Ctrl-C while it loads ends it without a word."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not where Ctrl-C is ignored, as under nohup
        signal.signal(signal.SIGINT, _end_at_once)
    try:
        from greedw_cli.commands import run  # noqa: PLC0415 - numpy and typer take a while to load

        signal.signal(signal.SIGINT, before)
        run()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _end_at_once(_number: int, _frame: FrameType | None) -> NoReturn:
    """End without an exception, which a half-done import could swallow, or print."""
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
