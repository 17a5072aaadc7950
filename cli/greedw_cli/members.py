"""``init``, ``invite``, ``join``, ``leave``, ``evict``: who belongs to the cluster."""

import re
import sys
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from greedw_cli import exits, figures
from greedw_cli.console import explain, print_json, print_line
from greedw_cli.daemon import AsJson, StateDir, chosen_state_dir, connect, convert
from greedw_daemon.control.client import ControlClient, prepare_init, prepare_join
from greedw_p2p.errors import DaemonError
from greedw_p2p.node.status import NodeState, NodeStatus

JOIN_S: Final = 45.0
"""Limit of a join: several tries on each address of the token, then admission."""

LEAVE_S: Final = 60.0
"""Limit of a leave, which waits for the round in progress."""

EVICT_S: Final = 60.0
"""Limit of an eviction, which the other members must agree to."""

ADMITTED_S: Final = 5.0
"""How long a join waits to be admitted: that is quick, unless a job runs."""

_POLL_S: Final = 0.2
_WATCH_IT: Final = "Nothing more to do; greedw status says when it is a member."

STANDARD_INPUT: Final = "-"

_TOKEN_CHARS_MAX: Final = 4096
_TTL_S_MAX: Final = 30 * 86_400
_TTL_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def init(
    context: typer.Context,
    *,
    name: Annotated[str, typer.Option(metavar="NAME", help="What to call the cluster.")] = "greedw",
    state_dir: StateDir = None,
) -> None:
    """Make this machine the first member of a new cluster."""
    directory = chosen_state_dir(context, state_dir)
    client = ControlClient(directory, JOIN_S)
    if client.is_running():
        client.call("init", name=name)
        print_line(f'The cluster "{name}" exists now; this daemon is its first member.')
        print_line(
            "Next: greedw invite, and greedw join TOKEN on another machine; or greedw train."
        )
    else:
        prepare_init(directory, name)
        print_line(f'The cluster "{name}" is prepared in {directory}.')
        print_line(f"Next: start it with greedwd --state-dir {directory}")


def invite(
    context: typer.Context,
    *,
    ttl: Annotated[
        str, typer.Option(metavar="TIME", help="How long it holds: 90s, 15m, 1h, 7d.")
    ] = "1h",
    uses: Annotated[int, typer.Option(min=1, max=1000, help="How many machines may join.")] = 1,
    as_json: AsJson = False,
    state_dir: StateDir = None,
) -> None:
    """Print a token with which another machine can join."""
    answer = connect(context, state_dir).call("invite", ttl_s=_parse_ttl(ttl), uses=uses)
    if as_json:
        print_json(answer)
        return
    machines = "one machine" if uses == 1 else f"{uses} machines"
    explain(f"For {machines}, within {ttl}. Whoever has the token can join: pass it on with care.")
    explain("On the other machine, with its greedwd running or not: greedw join TOKEN")
    print_line(str(answer["token"]))


def join(
    context: typer.Context,
    token: Annotated[
        str | None, typer.Argument(show_default=False, help="What greedw invite printed.")
    ] = None,
    *,
    token_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Read the token from a file, or from standard input: -.",
        ),
    ] = None,
    state_dir: StateDir = None,
) -> None:
    """Make this machine a member of the cluster that printed the token."""
    directory = chosen_state_dir(context, state_dir)
    text = _given_token(token, token_file)
    client = ControlClient(directory, JOIN_S)
    if client.is_running():
        answer = client.call("join", token=text)
        for line in admission_lines(str(answer.get("cluster_name", "")), _wait_admitted(client)):
            print_line(line)
    else:
        prepare_join(directory, text)
        print_line(f"The token holds; {directory} is prepared.")
        print_line(f"Next: start it with greedwd --state-dir {directory}")


def leave(context: typer.Context, *, state_dir: StateDir = None) -> None:
    """Take this machine out of its cluster, after the round in progress."""
    client = connect(context, state_dir, LEAVE_S)
    before = client.call("status")
    client.call("leave")
    if before["state"] == NodeState.MEMBER and len(before["members"]) == 1:
        print_line("This machine was the last member: the cluster has ended.")
    else:
        print_line("This machine left the cluster; the others go on.")
    print_line("Its daemon waits for greedw init or greedw join TOKEN.")


def evict(
    context: typer.Context,
    node: Annotated[
        str, typer.Argument(metavar="NODE", help="The member's name or id, as in greedw status.")
    ],
    *,
    state_dir: StateDir = None,
) -> None:
    """Remove a member that is gone for good, so that training goes on without it.

    Refused while the member is alive: there, greedw leave takes it out.
    """
    connect(context, state_dir, EVICT_S).call("evict", node=node)
    print_line(f"{node} is no member any more; the others go on without it.")
    print_line("Should its machine come back, it joins anew as soon as no job runs.")


def admission_lines(cluster: str, node: NodeStatus) -> list[str]:
    """Return in words how far a join came that the cluster has accepted."""
    if node.state is not NodeState.JOINING:
        members = figures.plural(len(node.members), "member")
        return [f'This machine is now a member of "{cluster}" ({members}).', "Next: greedw status"]
    # What it waits for, in the words of the node itself.
    waits_for = node.pause or "waiting to be admitted"
    condition = re.search(r"that happens when (job \S+ has ended)", waits_for)
    if condition is None:
        return [f'This machine has been accepted by "{cluster}": {waits_for}.', _WATCH_IT]
    return [
        f'This machine has been accepted by "{cluster}"; it becomes a member when {condition[1]}.',
        _WATCH_IT,
    ]


def _wait_admitted(client: ControlClient) -> NodeStatus:
    """Return the node's status as soon as it is a member, or when it takes too long."""
    deadline_s = time.monotonic() + ADMITTED_S
    while True:
        node = convert(client.call("status"), NodeStatus)
        if node.state is not NodeState.JOINING or time.monotonic() > deadline_s:
            return node
        time.sleep(_POLL_S)


def _parse_ttl(text: str) -> int:
    match = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", text.strip())
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is not a time from 1s to 30d, like 90s, 15m or 1h", param_hint="--ttl"
        )
    seconds = int(match[1]) * _TTL_UNITS[match[2]]
    if seconds > _TTL_S_MAX:
        raise typer.BadParameter("an invitation holds from 1s to 30d", param_hint="--ttl")
    return seconds


def _given_token(token: str | None, token_file: str | None) -> str:
    """Return the token from whichever place was named; exactly one must be."""
    if (token is None) == (token_file is None):
        raise typer.BadParameter("give either the token or --token-file", param_hint="TOKEN")
    if token is not None:
        return token.strip()
    assert token_file is not None
    try:
        if token_file == STANDARD_INPUT:
            text = sys.stdin.read(_TOKEN_CHARS_MAX)
        else:
            with Path(token_file).open(encoding="utf-8", errors="replace") as file:
                text = file.read(_TOKEN_CHARS_MAX)
    except OSError as error:
        raise DaemonError(
            f"the token file {token_file} cannot be read ({error.strerror})",
            exit_code=exits.WRONG_USAGE,
        ) from error
    lines = text.split()
    if not lines:
        raise DaemonError("the token file is empty", hint="Give it what greedw invite printed.")
    # The last word, because invite prints the token on its last line.
    return lines[-1]
