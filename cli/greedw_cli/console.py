"""Where output goes: the answer to stdout, everything else to stderr."""

import sys
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.text import Text

_WIDTH_WITHOUT_TERMINAL: Final = 200
"""Columns of a pipe or a file: wide enough that no table is cut for whoever reads it."""


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that never colours figures by itself; NO_COLOR is rich's own business."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDTH_WITHOUT_TERMINAL
    return Console(stderr=stderr, highlight=False, width=width, soft_wrap=False)


def print_line(text: str) -> None:
    """Write one line of the answer as it is, never wrapped, so that it can be copied or parsed."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_json(answer: dict[str, Any]) -> None:
    """Write the one object of a ``--json`` answer."""
    print_line(msgspec.json.encode(answer).decode())


def explain(text: str) -> None:
    """Write a line for people to stderr, beside an answer that a program may read."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def report_error(message: str, hint: str = "") -> None:
    """Write what failed, and on the next lines what to try."""
    console = make_console(stderr=True)
    console.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
    if hint:
        console.print(Text(hint), soft_wrap=True)
