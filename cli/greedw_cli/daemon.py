"""The daemon that a command talks to, and its answers as typed values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
import typer

from greedw_cli import exits
from greedw_daemon.control.client import ControlClient, default_state_dir
from greedw_p2p.errors import DaemonError

STATE_DIR_HELP: Final = "Directory of the node's identity, config and control socket."

StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        metavar="DIR",
        show_default=False,
        help=STATE_DIR_HELP + " Default: GREEDW_STATE_DIR, else the user's data directory.",
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object.")]

QUICK_S: Final = 10.0
"""Limit of a call that the daemon answers from memory."""

AnswerT = TypeVar("AnswerT")


def chosen_state_dir(context: typer.Context, given: Path | None) -> Path:
    """Return the state directory: given after the subcommand, before it, or the default.

    Raises:
        DaemonError: if something else is in its place.
    """
    before: object = context.obj
    given_or_before = given if given is not None else before
    chosen = given_or_before if isinstance(given_or_before, Path) else default_state_dir()
    if chosen.exists() and not chosen.is_dir():
        raise DaemonError(
            f"{chosen} is not a directory",
            hint="--state-dir and GREEDW_STATE_DIR name a node's directory.",
            exit_code=exits.WRONG_USAGE,
        )
    return chosen


def connect(
    context: typer.Context, given: Path | None, timeout_s: float = QUICK_S
) -> ControlClient:
    """Return a client of the daemon that serves the chosen state directory."""
    return ControlClient(chosen_state_dir(context, given), timeout_s)


def convert(answer: Mapping[str, Any], kind: type[AnswerT]) -> AnswerT:
    """Turn a daemon's answer into a typed value.

    Raises:
        DaemonError: if it does not fit, because the daemon runs another version than this command.
    """
    try:
        return msgspec.convert(answer, kind, strict=False)
    except msgspec.ValidationError as error:
        raise DaemonError(
            f"the daemon's answer is not what this version of greedw expects ({error})",
            hint="The daemon probably runs another version: restart greedwd.",
            exit_code=exits.INCOMPATIBLE,
        ) from error
